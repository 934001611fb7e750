//! iflush, and what needs a GPU.

use ironrail_group::loader::raw::{Before, Receive};

use super::super::case::{Case, Outcome, skip};
use super::super::link::Link;
use super::super::table::{Behaviour, one};
use super::super::traffic::{Manner, arena};
use super::{few, talk};

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "flush-has-an-end",
        "iflush on host memory answers null, or a request that ends; test has no place for sizes then",
        "NCCL src/transport/net.cc:1641-1687, 1699-1700",
        flush_has_an_end,
    ),
    one(
        "flush-between-messages",
        "flushes between messages disturb nothing",
        "NCCL src/transport/net.cc:1641-1687",
        flush_between_messages,
    ),
    one(
        "gpu-memory-registers",
        "regMr takes device memory where ptrSupport says so",
        "NCCL src/transport/net.cc:984-1015",
        gpu,
    ),
    one(
        "gpu-dmabuf-registers",
        "regMrDmaBuf takes a descriptor that NCCL closes right after the call",
        "NCCL src/transport/net.cc:1000",
        gpu,
    ),
    one(
        "gpu-flush-makes-visible",
        "after a flush the GPU sees what came",
        "NCCL src/graph/paths.cc:572-597",
        gpu,
    ),
];

fn flush_has_an_end(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::PLAIN)?;
    flush(case, &link)?;
    link.close()?;
    Ok(net.finalize()?)
}

fn flush_between_messages(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    for _ in 0..8 {
        talk(case, &link, &few(), Manner::PLAIN)?;
        flush(case, &link)?;
    }
    link.close()?;
    Ok(net.finalize()?)
}

fn flush(case: &Case, link: &Link) -> Outcome {
    let memory = arena(8192)?;
    let region = link.receive.register(memory, 0, 8192)?;
    let part = Receive { arena: memory, at: 0, len: 4096, tag: 0, region: &region };
    let request = link.receive.iflush(&[part], Before::Stale)?;
    if let Some(mut request) = request {
        case.until("wait for a flush", || Ok(request.test_over(true, true)?.done.then_some(())))?;
    }
    Ok(region.deregister()?)
}

fn gpu(_: &mut Case) -> Outcome {
    skip("conform has host memory only")
}
