use super::super::opening::opened;
use super::super::proof::{Mixing, Nonces, Secret};
use super::*;
use crate::capabilities::ImmediateWidth;
use crate::wire2::ids::{Generation, ListenerId, Slot};

const NONCES: Nonces = Nonces { prover: 1, verifier: 2 };
const NOW: Moment = Moment::from_nanos(5);

fn name(slot: usize) -> Name {
    Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(1) }
}

fn settling() -> Settling {
    let agreed = Capabilities {
        immediate: ImmediateWidth::Eight,
        true_lengths: true,
        self_read: true,
        proves_arrival: false,
        delivery_complete: true,
        virtual_addresses: true,
        rma_inject_bytes: 64,
        largest_write: 1 << 30,
    };
    Settling { agreed, rails: 1, shared_from: 1 << 20, inline_host: 4096 }
}

fn asking() -> Seat {
    let opening = Opening::new(name(3), ListenerId(5), Secret([1; 16]), Features::default());
    let mut seat = Seat::asking(opening, settling());
    assert_eq!(seat.step(NOW), Step::Open);
    let open = seat.opening().unwrap().open(NONCES, &Mixing);
    seat.ask(open);
    seat
}

fn next(seat: &mut Seat, account: &mut Account) -> Option<Frame> {
    seat.next_frame(Which::Others, 60, account, NOW)
}

#[test]
fn adverts_that_come_right_behind_opened_find_the_flow() {
    let mut account = Account::new(1);
    let mut seat = asking();
    assert_eq!(seat.owes(&account, NOW), Owes::Urgent);
    let Some(Frame::Open(open)) = next(&mut seat, &mut account) else { panic!("no OPEN") };
    assert_eq!(next(&mut seat, &mut account), None, "it leaves once");
    assert!(seat.is_asking() && seat.waits());
    let answer = Frame::Opened(opened(&open, name(9), Features::default(), 512));
    assert_eq!(seat.received(&answer, &mut account, NOW), Ok(None));
    assert!(seat.sender().is_some());
    assert_eq!(seat.peer(), Some(name(9)));
    let again = seat.received(&answer, &mut account, NOW);
    assert_eq!(again, Err(Breach(Violation::Direction)), "the sender's flow knows no OPENED");
}

#[test]
fn an_answer_that_nobody_asked_for_fails_the_channel() {
    let mut account = Account::new(1);
    let mut seat = asking();
    let open = seat.opening().unwrap().open(NONCES, &Mixing);
    let answer = Frame::Opened(opened(&open, name(9), Features::default(), 512));
    assert!(seat.received(&answer, &mut account, NOW).is_err(), "OPEN has not left");
}

#[test]
fn opened_leaves_before_any_advert() {
    let mut account = Account::new(1);
    let terms = settling().settle(name(9), name(3), Features::default(), 0).unwrap();
    let mut asker = asking();
    let Some(Frame::Open(open)) = next(&mut asker, &mut account) else { panic!("no OPEN") };
    let answer = opened(&open, name(9), Features::default(), 0);
    let mut seat = Seat::accepted(ReceiveFlow::new(terms), answer);
    assert_eq!(seat.owes(&account, NOW), Owes::Waited);
    assert_eq!(seat.next_frame(Which::Adverts, 60, &mut account, NOW), None);
    assert_eq!(next(&mut seat, &mut account), Some(Frame::Opened(answer)));
    assert!(!seat.owes_opened());
}

#[test]
fn a_refusal_leaves_once_and_frees_its_slot() {
    let mut account = Account::new(1);
    let mut seat = Seat::Refusing(Some(Refused { to: name(3), why: Refusal::Proof, detail: 0 }));
    assert!(!seat.is_over());
    assert!(next(&mut seat, &mut account).is_some());
    assert!(seat.is_over() && next(&mut seat, &mut account).is_none());
    let mut asker = asking();
    next(&mut asker, &mut account);
    let refused = Frame::Refused(Refused { to: name(3), why: Refusal::Proof, detail: 0 });
    assert_eq!(asker.received(&refused, &mut account, NOW), Ok(None));
    assert_eq!(refusal(asker.step(NOW)), Some(Refusal::Proof));
}

#[test]
fn a_connect_on_a_channel_that_ends_is_over() {
    let mut seat = asking();
    seat.ended(true, NOW);
    assert!(seat.is_over() && !seat.is_asking());
}
