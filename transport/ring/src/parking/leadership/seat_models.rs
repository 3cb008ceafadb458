//! Models of the seat: which thread leads when the leader leaves, in every order of events.

use std::task::Wake;

use ibex_base::sync::{Arc, thread};

use super::{models::ModelBell, *};

/// A parked thread's waker.
struct Rings(Arc<ModelBell>);

impl Wake for Rings {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.ring();
    }
}

/// A thread that follows, and its own place to sleep.
fn follow(leadership: &Leadership<()>, bell: &Arc<ModelBell>) {
    let waker = std::sync::Arc::new(Rings(bell.clone())).into();
    leadership.follow(&waker, || (), || bell.sleep());
}

/// Leads once, whenever the seat is vacant.
fn lead_once(leadership: &Leadership<()>, bell: &Arc<ModelBell>) {
    while leadership.try_lead().is_none() {
        follow(leadership, bell);
        bell.drain();
    }
}

fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// Mutants: left_silently, followed_blindly, light_missing, heavy_missing.
#[test]
fn loom_the_seat_is_passed_on() {
    bounded().check(|| {
        let leadership = Arc::new(Leadership::new(()));
        let lead = leadership.try_lead().unwrap();
        let bells = [Arc::new(ModelBell::new(2)), Arc::new(ModelBell::new(2))];
        let followers = [0, 1].map(|me: usize| {
            let (leadership, bells) = (leadership.clone(), bells.clone());
            thread::spawn(move || {
                lead_once(&leadership, &bells[me]);
                bells[1 - me].leave();
            })
        });
        drop(lead);
        bells.iter().for_each(|bell| bell.leave());
        followers
            .into_iter()
            .for_each(|follower| follower.join().unwrap());
    });
}

/// A leader that panics, in a waker or elsewhere, leaves like any other.
///
/// Mutant: left_silently.
#[test]
fn loom_a_leader_may_panic() {
    loom::model(|| {
        let leadership = Arc::new(Leadership::new(()));
        let bell = Arc::new(ModelBell::new(1));
        let lead = leadership.try_lead().unwrap();
        let follower = {
            let (leadership, bell) = (leadership.clone(), bell.clone());
            thread::spawn(move || lead_once(&leadership, &bell))
        };
        let panics = || {
            let _lead = lead;
            std::panic::resume_unwind(Box::new("in a waker"));
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(panicked.is_err());
        bell.leave();
        follower.join().unwrap();
    });
}

/// A follower whose time is up was woken for the seat, and another one needs it.
///
/// Mutant: not_passed_on.
#[test]
fn loom_a_follower_may_give_up() {
    bounded().check(|| {
        let leadership = Arc::new(Leadership::new(()));
        let lead = leadership.try_lead().unwrap();
        let stays = Arc::new(ModelBell::new(2));
        let gives_up = {
            let (leadership, stays) = (leadership.clone(), stays.clone());
            thread::spawn(move || {
                let waker = std::sync::Arc::new(Nothing).into();
                leadership.follow(&waker, || (), thread::yield_now);
                leadership.pass_on(|| ());
                stays.leave();
            })
        };
        let follower = {
            let (leadership, stays) = (leadership.clone(), stays.clone());
            thread::spawn(move || lead_once(&leadership, &stays))
        };
        drop(lead);
        stays.leave();
        gives_up.join().unwrap();
        follower.join().unwrap();
    });
}

/// The waker of a thread that sleeps by time alone.
struct Nothing;

impl Wake for Nothing {
    fn wake(self: std::sync::Arc<Self>) {}
}

/// Mutants: left_silently, stood_by_blindly, light_missing, heavy_missing.
#[test]
fn loom_the_keeper_stands_by() {
    loom::model(|| {
        let leadership = Arc::new(Leadership::new(()));
        let lead = leadership.try_lead().unwrap();
        let bell = Arc::new(ModelBell::new(1));
        let keeper = {
            let (leadership, bell) = (leadership.clone(), bell.clone());
            thread::spawn(move || {
                let waker = std::sync::Arc::new(Rings(bell.clone())).into();
                while leadership.try_keep().is_none() {
                    leadership.stand_by(&waker, || bell.sleep());
                    bell.drain();
                }
            })
        };
        drop(lead);
        bell.leave();
        keeper.join().unwrap();
    });
}

/// Mutants: claim_unseen, rouse_fence_missing, sleep_fence_missing.
#[test]
fn loom_the_seat_is_claimed() {
    loom::model(|| {
        let leadership = Arc::new(Leadership::new(()));
        let (keepers, mine) = (Arc::new(ModelBell::new(1)), Arc::new(ModelBell::new(1)));
        let kept = leadership.try_keep().unwrap();
        let claims = {
            let (leadership, keepers, mine) = (leadership.clone(), keepers.clone(), mine.clone());
            thread::spawn(move || {
                let waker = std::sync::Arc::new(Rings(mine.clone())).into();
                let park = || {
                    // While it sleeps, this thread rings for no other.
                    keepers.leave();
                    mine.sleep();
                };
                let claim = || leadership.claim(|| true, || keepers.ring());
                leadership.follow(&waker, claim, park);
                assert!(leadership.try_lead().is_some());
            })
        };
        while !leadership.is_claimed() {
            leadership.sleep(
                leadership.lock(),
                || false,
                |_, stay| (!stay).then_some(()),
                |()| keepers.sleep(),
            );
            keepers.drain();
        }
        drop(kept);
        mine.leave();
        claims.join().unwrap();
    });
}

/// The keeper leaves for a claim while a thread begins to wait for several engines. The keeper's
/// fence has no mutant: the barrier of `wake_one` stands in for it here.
///
/// Mutant: span_fence_missing.
#[test]
fn loom_the_keeper_stays_for_who_spans() {
    loom::model(|| {
        let leadership = Arc::new(Leadership::new(()));
        let summoned = Arc::new(AtomicBool::new(false));
        let kept = leadership.try_keep().unwrap();
        let spans = {
            let (leadership, summoned) = (leadership.clone(), summoned.clone());
            thread::spawn(move || leadership.span(|| summoned.store(true, Ordering::Relaxed)))
        };
        drop(kept);
        let is_wanted = leadership.is_spanned();
        spans.join().unwrap();
        assert!(is_wanted || summoned.load(Ordering::Relaxed));
    });
}

/// A thread that waited goes away while another begins to wait for several engines.
///
/// The fence of the thread that goes away has no mutant: here the barrier of `wake_one` stands in for
/// it, which is none on machines with `membarrier`.
///
/// Mutant: span_fence_missing.
#[test]
fn loom_a_vacant_seat_is_kept_for_who_spans() {
    loom::model(|| {
        let leadership = Arc::new(Leadership::new(()));
        let summoned = Arc::new(AtomicBool::new(false));
        let lead = leadership.try_lead().unwrap();
        let spans = {
            let (leadership, summoned) = (leadership.clone(), summoned.clone());
            thread::spawn(move || leadership.span(|| summoned.store(true, Ordering::Relaxed)))
        };
        drop(lead);
        leadership.pass_on(|| summoned.store(true, Ordering::Relaxed));
        spans.join().unwrap();
        assert!(summoned.load(Ordering::Relaxed));
    });
}
