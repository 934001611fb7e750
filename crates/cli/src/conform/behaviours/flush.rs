//! iflush.

use net_loader::raw::Receive;

use super::super::behaviour::{Behaviour, one};
use super::super::case::{Case, Outcome};
use super::super::link::Link;
use super::super::traffic::{Manner, arena};
use super::{few, talk};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "flush-has-an-end",
        "iflush on host memory returns null, or a request that completes; test has no place for sizes then",
        "NCCL src/transport/net.cc:1641-1687, 1699-1700",
        flush_has_an_end,
    ),
    one(
        "flush-between-messages",
        "flushes between messages disturb nothing",
        "NCCL src/transport/net.cc:1641-1687",
        flush_between_messages,
    ),
];

fn flush_has_an_end(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    flush(case, &link)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn flush_between_messages(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for _ in 0..8 {
        talk(case, &link, &few(), Manner::LIKE_NCCL)?;
        flush(case, &link)?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn flush(case: &Case, link: &Link) -> Outcome {
    let memory = arena(8192)?;
    let region = link.receive.register(memory, 0, 8192)?;
    let part = Receive { arena: memory, at: 0, len: 4096, tag: 0, region: &region };
    super::flush(case, link, &[part])?;
    Ok(region.deregister()?)
}
