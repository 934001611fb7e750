//! A third process, whose connection must work whatever happens to the others.

use std::time::Instant;

use crate::support::calls::{Net, Object};
use crate::support::link::Link;
use crate::support::stage::{Cast, Part};
use crate::{CLOSE_BOUND, SLACK};

/// The third process.
pub(crate) fn play(part: &Part, net: Net, context: Object) {
    let mut link = Link::to_peer(net, context, &mut { part });
    while part.receive() == "works" {
        link.works();
    }
    link.close();
    net.finalize(context).expect("finalize");
}

/// The connection to it, at this end.
pub(crate) struct Bystander {
    cast: Cast,
    link: Link,
}

impl Bystander {
    pub(crate) fn cast(part: &Part, net: Net, context: Object) -> Self {
        let mut cast = part.cast("bystander", &[]);
        let mut this = Self { link: Link::to_peer(net, context, &mut cast), cast };
        this.works();
        this
    }

    pub(crate) fn works(&mut self) {
        self.cast.say("works");
        self.link.works();
    }

    /// Makes the other side close.
    pub(crate) fn say_end(&mut self) {
        self.cast.say("end");
    }

    pub(crate) fn finish(self) {
        self.cast.finish();
    }

    /// Closes everything, in bounded time.
    pub(crate) fn end(mut self, net: Net, context: Object) {
        self.works();
        self.cast.say("end");
        self.link.close();
        let start = Instant::now();
        net.finalize(context).expect("finalize");
        assert!(start.elapsed() < CLOSE_BOUND + SLACK, "{:?}", start.elapsed());
        self.cast.finish();
    }
}
