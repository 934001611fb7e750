//! Grouped receives: several messages under one request, distinguished by their tags.

use std::collections::VecDeque;

use net_loader::raw::{Arena, Receive, ReceiveComm, Region, Request, SendComm};

use super::case::{Case, Outcome, Stop};
use super::traffic::{
    Flow, GUARD_BYTES, Manner, Message, arena, check, check_sizes, clear, fill, pattern,
};

/// The groups of one direction, in the order of posting.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    groups: Vec<Vec<Message>>,
    stride: usize,
}

impl Plan {
    pub(super) fn new(groups: Vec<Vec<Message>>) -> Self {
        let largest = groups.iter().flatten().map(|message| message.room.max(message.bytes)).max();
        let stride = (largest.unwrap_or(0) + 2 * GUARD_BYTES).next_multiple_of(64);
        Self { groups, stride }
    }

    /// Every message with its number, in the receiver's order.
    pub(super) fn messages(&self) -> impl Iterator<Item = (usize, Message)> {
        self.groups.iter().flatten().copied().enumerate()
    }

    fn bytes(&self) -> usize {
        self.stride * self.groups.iter().map(Vec::len).sum::<usize>()
    }

    fn at(&self, number: usize) -> usize {
        number * self.stride + GUARD_BYTES
    }
}

/// Sends the messages of each tag in order; the tags are independent, like the connections that share a comm.
#[derive(Debug)]
pub(super) struct GroupOutgoing<'a> {
    comm: &'a SendComm,
    plan: Plan,
    region: Region,
    arena: Arena,
    streams: Vec<Stream>,
    done: usize,
}

#[derive(Debug)]
struct Stream {
    waiting: VecDeque<(usize, Message)>,
    outstanding: VecDeque<Request>,
}

impl<'a> GroupOutgoing<'a> {
    /// `reversed`: the tag whose receive was posted last is sent first.
    pub(super) fn new(
        comm: &'a SendComm,
        salt: usize,
        plan: &Plan,
        reversed: bool,
    ) -> Outcome<Self> {
        let memory = arena(plan.bytes())?;
        let region = comm.register(memory, 0, memory.len())?;
        let mut tags: Vec<i32> = Vec::new();
        let mut streams: Vec<Stream> = Vec::new();
        for (number, message) in plan.messages() {
            memory.write(plan.at(number), &pattern(salt, number, message.bytes));
            let place = tags.iter().position(|tag| *tag == message.tag).unwrap_or_else(|| {
                tags.push(message.tag);
                streams.push(Stream { waiting: VecDeque::new(), outstanding: VecDeque::new() });
                tags.len() - 1
            });
            streams[place].waiting.push_back((number, message));
        }
        if reversed {
            streams.reverse();
        }
        Ok(Self { comm, plan: plan.clone(), region, arena: memory, streams, done: 0 })
    }

    /// Posts all messages of the first groups, or as many of each tag as may be outstanding, and tests none. Calls `meanwhile` between
    /// attempts.
    pub(super) fn fill(
        &mut self,
        case: &Case,
        groups: usize,
        mut meanwhile: impl FnMut() -> Outcome,
    ) -> Outcome {
        let end = self.plan.groups.iter().take(groups).map(Vec::len).sum();
        let due = |stream: &Stream| stream.waiting.iter().take_while(|next| next.0 < end).count();
        let whole = self.streams.iter().map(|stream| due(stream).min(STEPS)).sum();
        fill(case, "isend", whole, || {
            for stream in &mut self.streams {
                if stream.outstanding.len() < STEPS && due(stream) > 0 {
                    stream.post(self.comm, &self.plan, self.arena, &self.region)?;
                }
            }
            meanwhile()?;
            Ok(self.streams.iter().map(|stream| stream.outstanding.len()).sum())
        })
    }

    pub(super) fn end(self) -> Outcome {
        Ok(self.region.deregister()?)
    }
}

impl Stream {
    /// Posts one isend, if there is a message. Returns whether the plugin accepted it.
    fn post(
        &mut self,
        comm: &SendComm,
        plan: &Plan,
        arena: Arena,
        region: &Region,
    ) -> Outcome<bool> {
        let Some(&(number, message)) = self.waiting.front() else { return Ok(false) };
        let place = (arena, plan.at(number), message.bytes);
        let request = comm.isend(place, message.tag, region, Manner::LIKE_NCCL.before)?;
        let Some(request) = request else { return Ok(false) };
        self.outstanding.push_back(request);
        self.waiting.pop_front();
        Ok(true)
    }
}

impl Flow for GroupOutgoing<'_> {
    fn step(&mut self) -> Outcome<bool> {
        let mut moved = false;
        for stream in &mut self.streams {
            if stream.outstanding.len() < STEPS {
                moved |= stream.post(self.comm, &self.plan, self.arena, &self.region)?;
            }
            if let Some(oldest) = stream.outstanding.front_mut()
                && oldest.test()?.done
            {
                stream.outstanding.pop_front();
                self.done += 1;
                moved = true;
            }
        }
        Ok(moved)
    }

    fn is_finished(&self) -> bool {
        self.streams.iter().all(|stream| stream.waiting.is_empty() && stream.outstanding.is_empty())
    }

    fn says(&self) -> String {
        let waiting: usize = self.streams.iter().map(|stream| stream.waiting.len()).sum();
        format!("{} sends of groups done, {waiting} not yet posted", self.done)
    }
}

/// NCCL_STEPS: the most requests of one connection.
const STEPS: usize = 8;

/// Posts groups in a window, and checks every message.
#[derive(Debug)]
pub(super) struct GroupIncoming<'a> {
    comm: &'a ReceiveComm,
    plan: Plan,
    region: Region,
    arena: Arena,
    salt: usize,
    window: usize,
    posted: usize,
    first: usize,
    done: usize,
    outstanding: VecDeque<Request>,
}

impl<'a> GroupIncoming<'a> {
    pub(super) fn new(
        comm: &'a ReceiveComm,
        salt: usize,
        plan: &Plan,
        window: usize,
    ) -> Outcome<Self> {
        let memory = arena(plan.bytes())?;
        let region = comm.register(memory, 0, memory.len())?;
        for (number, message) in plan.messages() {
            clear(memory, plan.at(number), message.room);
        }
        Ok(Self {
            comm,
            plan: plan.clone(),
            region,
            arena: memory,
            salt,
            window,
            posted: 0,
            first: 0,
            done: 0,
            outstanding: VecDeque::new(),
        })
    }

    pub(super) fn end(self) -> Outcome {
        Ok(self.region.deregister()?)
    }

    /// Posts the groups of a window, and tests none.
    pub(super) fn fill(&mut self, case: &Case) -> Outcome {
        let window = self.window.min(self.plan.groups.len());
        fill(case, "irecv", window, || {
            self.post()?;
            Ok(self.outstanding.len())
        })
    }

    fn first_number(&self, group: usize) -> usize {
        self.plan.groups[..group].iter().map(Vec::len).sum()
    }

    fn post(&mut self) -> Outcome<bool> {
        let Some(group) = self.plan.groups.get(self.posted) else { return Ok(false) };
        if self.outstanding.len() >= self.window {
            return Ok(false);
        }
        let first = self.first_number(self.posted);
        let parts: Vec<Receive<'_>> = (first..)
            .zip(group)
            .map(|(number, message)| Receive {
                arena: self.arena,
                at: self.plan.at(number),
                len: message.room,
                tag: message.tag,
                region: &self.region,
            })
            .collect();
        let Some(request) = self.comm.irecv(&parts, Manner::LIKE_NCCL.before, true)? else {
            return Ok(false);
        };
        self.outstanding.push_back(request);
        self.posted += 1;
        Ok(true)
    }

    pub(super) fn poll(&mut self) -> Outcome<bool> {
        let Some(oldest) = self.outstanding.front_mut() else { return Ok(false) };
        let tested = oldest.test_over(true, false)?;
        if !tested.done {
            return Ok(false);
        }
        let (number, first) = (self.done, self.first);
        let group = &self.plan.groups[number];
        let sizes: Vec<usize> = group.iter().map(|message| message.bytes).collect();
        check_sizes(number, &tested, &sizes, true)?;
        for (place, message) in group.iter().enumerate() {
            let bytes = pattern(self.salt, first + place, message.bytes);
            check(self.arena, self.plan.at(first + place), &bytes, message.room).map_err(
                |why| {
                    Stop::Fail(format!("group {number}, place {place}, tag {}: {why}", message.tag))
                },
            )?;
        }
        self.first += group.len();
        self.outstanding.pop_front();
        self.done += 1;
        Ok(true)
    }
}

impl Flow for GroupIncoming<'_> {
    fn step(&mut self) -> Outcome<bool> {
        let posted = self.post()?;
        Ok(self.poll()? || posted)
    }

    fn is_finished(&self) -> bool {
        self.done == self.plan.groups.len()
    }

    fn says(&self) -> String {
        let all = self.plan.groups.len();
        format!("{} of {all} groups received, {} posted", self.done, self.posted)
    }
}
