//! Tests of leadership, in one thread.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Wake;

use super::*;

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn nobody() -> Waker {
    Arc::new(Nobody).into()
}

#[test]
fn one_leads_and_only_then_others_follow() {
    let leadership = Leadership::new(());
    let (waker, parked) = (nobody(), Cell::new(0));
    let follow = || leadership.follow(&waker, || (), || parked.set(parked.get() + 1));
    follow();
    let lead = leadership.try_lead();
    assert!(lead.is_some() && leadership.try_lead().is_none());
    assert_eq!(leadership.leads(), (true, 1));
    follow();
    drop(lead);
    follow();
    assert_eq!(parked.get(), 1);
    assert!(leadership.try_lead().is_some());
    assert_eq!(leadership.leads(), (false, 2));
}

#[test]
fn the_keeper_is_asked_once_for_its_seat() {
    let leadership = Leadership::new(());
    let rung = Cell::new(0);
    let ring = || rung.set(rung.get() + 1);
    let kept = leadership.try_keep();
    assert!(leadership.try_lead().is_none() && !leadership.is_claimed());
    let check = |_: &mut (), stay: bool| (!stay).then_some(());
    let claim_twice = |()| {
        leadership.claim(|| false, || panic!("the keeper is wanted"));
        leadership.claim(|| true, ring);
        leadership.claim(|| true, ring);
    };
    leadership.sleep(leadership.lock(), || false, check, claim_twice);
    assert!(leadership.is_claimed() && rung.get() == 1);
    // The keeper would not sleep through the claim either.
    let slept = leadership.sleep(leadership.lock(), || false, check, |()| ());
    assert_eq!(slept, None);
    drop(kept);
    assert!(!leadership.is_claimed() && leadership.try_lead().is_some());
    leadership.claim(|| true, || panic!("nobody keeps it"));
}

#[test]
fn one_is_woken_for_the_seat_and_the_keeper_last() {
    let leadership = Leadership::new(());
    let woken = [(); 3].map(|()| Arc::new(Count::default()));
    let wakers = woken.each_ref().map(|count| Waker::from(count.clone()));
    let counts = || {
        woken
            .each_ref()
            .map(|count| count.0.load(Ordering::Relaxed))
    };
    let lead = leadership.try_lead();
    let _tickets = [
        leadership.standby.register(&wakers[2]),
        leadership.followers.register(&wakers[0]),
        leadership.followers.register(&wakers[1]),
    ];
    leadership.pass_on(|| ());
    assert_eq!(counts(), [0, 0, 0]);
    drop(lead);
    assert_eq!(counts(), [1, 0, 0]);
    leadership.pass_on(|| ());
    assert_eq!(counts(), [1, 1, 0]);
    leadership.pass_on(|| ());
    assert_eq!(counts(), [1, 1, 1]);
}

#[test]
fn the_keeper_is_summoned_to_a_vacant_seat_while_a_thread_spans_engines() {
    let leadership = Leadership::new(());
    let summoned = Cell::new(0);
    let summon = || summoned.set(summoned.get() + 1);
    leadership.pass_on(|| panic!("nobody wants the keeper"));
    leadership.span(summon);
    let lead = leadership.try_lead();
    leadership.span(|| panic!("somebody leads"));
    leadership.pass_on(|| panic!("somebody leads"));
    drop(lead);
    leadership.unspan();
    leadership.pass_on(summon);
    assert_eq!(summoned.get(), 2);
    leadership.unspan();
    leadership.pass_on(|| panic!("nobody wants the keeper"));
}

#[test]
fn a_sleeper_is_rung_for_and_keeps_its_bell() {
    let leadership = Leadership::new(0);
    let rung = Cell::new(0);
    let ring = || rung.set(rung.get() + 1);
    assert!(!leadership.rouse(ring));
    let slept = leadership.sleep(
        leadership.lock(),
        || false,
        |_, stay| {
            assert!(!leadership.may_drain());
            (!stay).then_some(7)
        },
        |seven| {
            assert!(leadership.has_sleeper() && leadership.rouse(ring));
            leadership.drive(|mut engine| *engine += 1, false, ring);
            let engine = leadership.lock();
            leadership.drive(|_| panic!("somebody has the engine"), false, ring);
            drop(engine);
            seven
        },
    );
    assert_eq!((slept, rung.get(), *leadership.lock()), (Some(7), 2, 1));
    assert!(leadership.may_drain());
}

#[test]
fn a_program_that_sleeps_on_the_bell_is_rung_for_unless_the_turn_is_run() {
    let leadership = Leadership::new(());
    let rung = Cell::new(0);
    let ring = || rung.set(rung.get() + 1);
    leadership.drive(|_| (), true, ring);
    assert_eq!(rung.get(), 0);
    let engine = leadership.lock();
    leadership.drive(|_| panic!("somebody has the engine"), true, ring);
    drop(engine);
    assert_eq!(rung.get(), 1);
    assert!(leadership.is_marked());
}

#[test]
fn a_mark_or_a_wake_up_keeps_the_leader_awake() {
    let leadership = Leadership::new(());
    let sleeps = |is_woken: bool| {
        let check = |_: &mut (), stay: bool| (!stay).then_some(());
        let slept = leadership.sleep(leadership.lock(), || is_woken, check, |()| ());
        slept.is_some()
    };
    assert!(sleeps(false) && !sleeps(true));
    let engine = leadership.lock();
    leadership.drive(|_| panic!("somebody has the engine"), false, || ());
    drop(engine);
    assert!(!sleeps(false));
    assert!(leadership.take_mark() && !leadership.take_mark());
    assert!(sleeps(false));
}
