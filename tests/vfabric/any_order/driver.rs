//! One run: three communicators of a process and their connections, and one step after the other, by chance.

use std::time::{Duration, Instant};

use super::connection::{Connection, RECEIVER, SENDER};
use super::ends::Ends;
use super::memory::Memory;
use crate::support::calls::{Net, Object, warnings};
use crate::support::random::Random;
use crate::support::virtual_fabric::VirtualFabric;

pub(super) const FAULTS: [&str; 9] =
    ["refuse", "reject", "fail", "fail_late", "vanish", "stall", "resume", "kill", "revive"];

pub(super) struct Driver {
    net: Net,
    fabric: VirtualFabric,
    ends: Ends,
    connections: Vec<Connection>,
    random: Random,
    /// The faults that are injected.
    faults: Vec<&'static str>,
    opened: usize,
    stale: Vec<Object>,
    /// Of connections that are over.
    memory: Vec<Memory>,
}

impl Driver {
    pub(super) fn new(
        net: Net,
        fabric: VirtualFabric,
        faults: Vec<&'static str>,
        random: Random,
    ) -> Self {
        Self {
            net,
            fabric,
            ends: Ends::open(net, !faults.is_empty()),
            connections: Vec::new(),
            random,
            faults,
            opened: 0,
            stale: Vec::new(),
            memory: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        for _ in 0..STEPS {
            let start = Instant::now();
            self.step();
            assert!(start.elapsed() < HANG, "a step takes {:?}", start.elapsed());
            self.sweep();
        }
        while !self.connections.is_empty() {
            self.finish(0);
            self.sweep();
        }
        for nic in 0..2 {
            self.fabric.change(nic, "resume");
            self.fabric.change(nic, "revive");
        }
        self.fabric.settle(|| self.ends.poll());
        self.ends.close();
        assert!(
            self.memory.iter().all(Memory::is_untouched),
            "a write to memory that was given back"
        );
        let is_bug = |line: &String| line.contains("bug in Ironrail");
        assert_eq!(warnings().into_iter().filter(is_bug).collect::<Vec<_>>(), [""; 0]);
        match self.faults.is_empty() {
            true => self.fabric.is_clean(),
            false => assert_eq!(self.fabric.violations(), [""; 0]),
        }
    }

    fn step(&mut self) {
        let (count, choice) = (self.connections.len(), self.random.below(400));
        match choice {
            0..10 if count < CONNECTIONS_MAX => return self.open(),
            10..40 => return self.ends.poll(),
            40..50 => return self.call_with_stale(),
            50 => return self.finalize(),
            51..55 if !self.faults.is_empty() => return self.inject(),
            _ if count == 0 => return,
            _ => {}
        }
        let at = self.random.below(count);
        let (connection, random, ends) = (&mut self.connections[at], &mut self.random, &self.ends);
        let side = random.pick(&[SENDER, RECEIVER]);
        match choice {
            60..90 => connection.connect(ends),
            90..120 => connection.accept(),
            120..200 => connection.send(random),
            200..270 => connection.receive(random),
            270..380 => connection.test(side, random),
            380..385 => connection.register(side),
            385..394 => connection.deregister(side, ends, random),
            394 => connection.close(side),
            395 => connection.close_all(ends, random),
            396.. => self.finish(at),
            _ => {}
        }
    }

    fn open(&mut self) {
        self.opened += 1;
        let connection = Connection::new(self.net, &self.ends, self.opened, &mut self.random);
        self.connections.extend(connection);
    }

    /// Moves what is left, if nothing was done to it that prevents it, and closes it.
    fn finish(&mut self, at: usize) {
        let start = Instant::now();
        while !self.connections[at].may_fail && !self.connections[at].is_through() {
            // A connection for which accept is not called holds up later ones.
            for connection in &mut self.connections {
                connection.connect(&self.ends);
                connection.accept();
            }
            let (connection, random) = (&mut self.connections[at], &mut self.random);
            connection.receive(random);
            connection.send(random);
            connection.test(SENDER, random);
            connection.test(RECEIVER, random);
            assert!(start.elapsed() < PATIENCE, "connection {} does not end", connection.name);
            self.ends.poll();
        }
        self.connections[at].close_all(&self.ends, &mut self.random);
    }

    fn finalize(&mut self) {
        let end = self.ends.any(&mut self.random);
        self.stale.extend(self.ends.replace(end, &mut self.random));
        for connection in &mut self.connections {
            connection.lose(end, self.faults.is_empty());
        }
    }

    /// Removes what is over, and closes what has failed.
    fn sweep(&mut self) {
        for connection in &mut self.connections {
            if connection.has_failed && self.random.one_in(30) {
                connection.close_all(&self.ends, &mut self.random);
            }
            self.stale.append(&mut connection.stale);
        }
        let over = self.connections.extract_if(.., |connection| connection.is_over());
        self.memory.extend(over.flat_map(Connection::into_memory));
    }

    fn call_with_stale(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let (net, object) = (self.net, self.random.pick(&self.stale));
        let refused = match self.random.below(9) {
            0 => net.test(object).is_err(),
            1 => net.isend(object, 8, 8, 0, object).is_err(),
            2 => net.irecv(object, 8, 8, 0, object).is_err(),
            3 => net.close_send(object).is_err(),
            4 => net.close_recv(object).is_err(),
            5 => net.close_listen(object).is_err(),
            6 => net.deregister(object, object).is_err(),
            7 => net.finalize(object).is_err(),
            _ => net.accept(object).is_err(),
        };
        assert!(refused, "{object:?} is over");
    }

    fn inject(&mut self) {
        let nic = self.random.pick(&[0, 1]);
        match self.random.pick(&self.faults) {
            "refuse" => {
                let next = self.fabric.number("counter.posts") + 1;
                self.fabric.fault(&format!("refuse={next}-{}", next + self.random.up_to(30)));
            }
            action @ ("stall" | "resume" | "kill" | "revive") => self.fabric.change(nic, action),
            word => self.fabric.fault_next(word, 0),
        }
    }
}

const CONNECTIONS_MAX: usize = 6;
const STEPS: usize = 1500;
/// How long the messages of a connection may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long any step may take, on a busy machine.
const HANG: Duration = Duration::from_secs(40);
