//! A rank: its operations, each done from all ranks' inputs.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUresult};

use crate::network::Network;
use crate::{Failure, INTERNAL_ERROR, INVALID_ARGUMENT, REMOTE_ERROR, forever, is};

/// A rank of a communicator.
#[derive(Debug)]
pub struct Comm {
    network: Network,
    collectives: u32,
}

/// A call of NCCL's user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) operation: Operation,
    /// Addresses on the device.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) count: usize,
    pub(crate) element: Element,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Send(usize),
    Receive(usize),
}

/// An element's width and how two are added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    bytes: usize,
    add: fn(&mut [u8], &[u8]),
}

macro_rules! adder {
    ($type:ty, $add:expr) => {
        |sum: &mut [u8], term: &[u8]| {
            let read =
                |bytes: &[u8]| <$type>::from_ne_bytes(bytes.try_into().expect("one element"));
            let add: fn($type, $type) -> $type = $add;
            let whole = add(read(sum), read(term)).to_ne_bytes();
            sum.copy_from_slice(&whole);
        }
    };
}

impl Element {
    /// Of ncclDataType_t.
    pub(crate) fn of(kind: c_int) -> Option<Self> {
        Some(match kind {
            1 => Self { bytes: 1, add: adder!(u8, u8::wrapping_add) },
            2 => Self { bytes: 4, add: adder!(i32, i32::wrapping_add) },
            4 => Self { bytes: 8, add: adder!(i64, i64::wrapping_add) },
            7 => Self { bytes: 4, add: adder!(f32, |a, b| a + b) },
            8 => Self { bytes: 8, add: adder!(f64, |a, b| a + b) },
            _ => return None,
        })
    }

    fn sum(self, inputs: &[&[u8]]) -> Vec<u8> {
        let Some((first, rest)) = inputs.split_first() else { return Vec::new() };
        let mut sum = first.to_vec();
        for input in rest {
            for (sum, term) in sum.chunks_mut(self.bytes).zip(input.chunks(self.bytes)) {
                (self.add)(sum, term);
            }
        }
        sum
    }
}

impl Comm {
    pub(crate) fn join(id: &[u8; 128], rank: usize, size: usize) -> Result<Self, Failure> {
        Ok(Self { network: Network::join(id, rank, size)?, collectives: 0 })
    }

    pub(crate) fn leave(self) -> Result<(), Failure> {
        self.network.leave()
    }

    /// Does the operations of one group.
    pub(crate) fn perform(&mut self, work: &[Work]) -> Result<(), Failure> {
        self.collectives += 1;
        let rank = self.network.rank();
        if is("die") && rank == 1 && self.collectives == 3 {
            // Libraries may handle other signals.
            let line = format!("kill -KILL {}", std::process::id());
            let _ = std::process::Command::new("sh").args(["-c", &line]).status();
        }
        if is("stick") && rank == 1 && self.collectives == 3 {
            forever();
        }
        if is("stick-abort") && self.collectives == 3 {
            return Err(Failure::new(REMOTE_ERROR, "the peer is gone"));
        }
        if let [only] = work
            && !matches!(only.operation, Operation::Send(_) | Operation::Receive(_))
        {
            return self.collective(*only);
        }
        self.exchange(work)
    }

    fn collective(&mut self, work: Work) -> Result<(), Failure> {
        let Work { operation, from, to, count, element } = work;
        let (rank, size) = (self.network.rank(), self.network.size());
        let len = count * element.bytes;
        let parts = if operation == Operation::ReduceScatter { size } else { 1 };
        let input = from_device(from, len * parts)?;
        let all = self.network.all_gather(&input)?;
        let inputs: Vec<&[u8]> = all.chunks(input.len().max(1)).collect();
        let mut output = match operation {
            Operation::AllGather => all.clone(),
            Operation::ReduceScatter => {
                let own: Vec<_> =
                    inputs.iter().map(|input| &input[rank * len..(rank + 1) * len]).collect();
                element.sum(&own)
            }
            _ => element.sum(&inputs),
        };
        flaw(rank, &mut output);
        to_device(to, &output)
    }

    /// Sends and receives: the bytes that a rank sends go to all ranks, and each rank takes those for it.
    fn exchange(&mut self, work: &[Work]) -> Result<(), Failure> {
        let rank = self.network.rank();
        let mut blob = Vec::new();
        for Work { operation, from, count, element, .. } in work {
            let Operation::Send(peer) = operation else { continue };
            let bytes = from_device(*from, count * element.bytes)?;
            blob.extend((*peer as u64).to_le_bytes());
            blob.extend((bytes.len() as u64).to_le_bytes());
            blob.extend(bytes);
        }
        let blobs = self.network.all_gather_any(&blob)?;
        let mut taken = vec![0; blobs.len()];
        for Work { operation, to, count, element, .. } in work {
            let Operation::Receive(peer) = *operation else { continue };
            let strange =
                || Failure::new(INTERNAL_ERROR, format!("rank {peer} sent nothing for us"));
            let blob = blobs.get(peer).ok_or_else(strange)?;
            let mut found = loop {
                let rest = &blob[taken[peer]..];
                let (head, rest) = rest.split_at_checked(16).ok_or_else(strange)?;
                let number =
                    |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                let len = usize::try_from(number(&head[8..])).map_err(|_| strange())?;
                taken[peer] += 16 + len;
                if number(&head[..8]) == rank as u64 {
                    break rest.get(..len).ok_or_else(strange)?.to_vec();
                }
            };
            if found.len() != count * element.bytes {
                return Err(Failure::new(
                    INVALID_ARGUMENT,
                    "a send and its receive differ in length",
                ));
            }
            flaw(rank, &mut found);
            to_device(*to, &found)?;
        }
        Ok(())
    }
}

fn flaw(rank: usize, output: &mut [u8]) {
    if let (true, 0, Some(first)) = (is("wrong"), rank, output.first_mut()) {
        *first ^= 1;
    }
}

fn from_device(address: u64, len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; len];
    // SAFETY: the destination has that many bytes; the driver checks the address.
    let answer = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, len) };
    check(answer, len)?;
    Ok(bytes)
}

fn to_device(address: u64, bytes: &[u8]) -> Result<(), Failure> {
    // SAFETY: the source has that many bytes; the driver checks the address.
    let answer = unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) };
    check(answer, bytes.len())
}

fn check(answer: CUresult, len: usize) -> Result<(), Failure> {
    if answer == CUresult::CUDA_SUCCESS || len == 0 {
        return Ok(());
    }
    Err(Failure::new(INTERNAL_ERROR, format!("a copy of {len} bytes failed: {answer:?}")))
}
