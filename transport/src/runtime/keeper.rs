//! The keeper, which is the I/O thread of an engine: it leads while no waiting thread does.
//!
//! ```text
//!              vacant, and no thread waited for some leases
//!     napping ------------------------------------------> leading
//!      |   ^ <-------------------------------------------  |
//!      |   |            a thread claims the seat
//!      |   | the leader leaves
//!      v   |
//!     standing by: one thread has led for longer than the longest nap
//! ```
//!
//! A nap ends by time, a *lease* later. So work that a thread leaves behind after its wait moves on
//! after one lease, and two threads never sleep in the epoll set. A process at rest has no timed
//! wake-ups, because the I/O thread then leads or stands by. Leases become longer while threads
//! wait in each of them, so that many processes on few cores do not spend the cores on naps.
//!
//! No thread claims the seat where the I/O thread has cores of its own, or while a thread waits for
//! several engines. That thread could turn only one of them, and would miss events of the others
//! while it sleeps.

use std::{
    sync::{Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use ibex_base::Job;
use ibex_ring::parking::{Parker, Wakers, thread_waker};

use super::{EventLoop, own_thread};

/// Runs until the node is closed or gone.
pub(crate) fn run(event_loop: &Weak<EventLoop>, core: Option<usize>, jobs: &Receiver<Job>) {
    if let Some(core) = core
        && !own_thread::keep_to(core)
    {
        ibex_base::warn_limited!(
            core,
            core,
            "the I/O thread could not be pinned; it runs where it may"
        );
    }
    // The default timer slack is as long as a short nap; see PR_SET_TIMERSLACK in prctl(2).
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    Wakers::prepare();
    let (waker, parker) = thread_waker();
    let mut naps = Naps::default();
    while let Some(event_loop) = event_loop.upgrade() {
        // The waker is set before the check, so that a thread that ends the node finds it.
        event_loop.keeper.get_or_init(|| waker.clone());
        if event_loop.is_over() {
            return;
        }
        event_loop.own_thread.begin();
        own_thread::do_jobs(jobs);
        match naps.next(event_loop.seen()) {
            Rest::None => {
                if let Some(_lead) = event_loop.engine.try_keep() {
                    event_loop.keep(&parker, jobs);
                    naps.begin();
                }
            }
            Rest::For(lease) => {
                if parker.park(Instant::now().checked_add(lease)) {
                    naps.end();
                } else if naps.have_seen(event_loop.seen()) {
                    // Work may have been left behind, and no thread leads.
                    while event_loop.engine.is_vacant() && event_loop.poll_ready() {}
                }
            }
            Rest::UntilTheLeaderLeaves => {
                event_loop.engine.stand_by(&waker, || {
                    parker.park(None);
                });
                naps.begin();
            }
        }
    }
}

impl EventLoop {
    fn is_over(&self) -> bool {
        self.node.is_closed() && self.engine.lock().is_finished()
    }

    fn seen(&self) -> Seen {
        let (is_led, leads) = self.engine.leads();
        Seen {
            is_led,
            leads,
            polls: self.presence.load(Ordering::Relaxed),
            is_crowded: self.shares_cores.load(Ordering::Relaxed),
            is_wanted: self.engine.is_spanned(),
        }
    }

    /// Leads until another thread claims the seat.
    fn keep(&self, parker: &Parker, jobs: &Receiver<Job>) {
        while !self.engine.is_claimed() && !self.is_over() {
            self.lead(parker, None);
            if parker.forget() {
                own_thread::do_jobs(jobs);
            }
        }
    }

    /// Wakes the I/O thread, which leads at once if no other thread does.
    pub(crate) fn summon_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.wake_by_ref();
        }
    }
}

/// The keeper's view of the threads that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// True while a waiting thread leads.
    is_led: bool,
    /// The number of times that a waiting thread began to lead.
    leads: u32,
    /// A count that changes while threads look.
    polls: u32,
    /// True if more threads want to run than there are cores.
    is_crowded: bool,
    /// True while a thread waits for several engines, and so leads none of them.
    is_wanted: bool,
}

/// The keeper's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The keeper does not rest: it leads, if no thread does.
    None,
    /// The keeper naps for this time.
    For(Duration),
    /// The keeper stands by until the leader leaves.
    UntilTheLeaderLeaves,
}

/// The keeper's rule for its next check.
#[derive(Debug)]
struct Naps {
    lease: Duration,
    /// Leases in a row in which no thread waited; `VACANT_LEASES` of them end the napping.
    vacant: u32,
    last: Seen,
}

/// Starts with the keeper leading, because no thread waits at first.
impl Default for Naps {
    fn default() -> Self {
        Self {
            lease: LEASE,
            vacant: VACANT_LEASES,
            last: Seen::default(),
        }
    }
}

impl Naps {
    /// Begins to nap, because a thread waits again.
    fn begin(&mut self) {
        self.vacant = 0;
        self.lease = LEASE;
    }

    /// Ends the naps, because the keeper is wanted.
    fn end(&mut self) {
        self.vacant = VACANT_LEASES;
    }

    /// Returns whether no thread has waited since the last check.
    fn have_seen(&self, seen: Seen) -> bool {
        self.last == seen
    }

    fn next(&mut self, seen: Seen) -> Rest {
        let last = std::mem::replace(&mut self.last, seen);
        let is_new = seen.leads != last.leads;
        if (seen.is_wanted || self.vacant >= VACANT_LEASES) && !seen.is_led {
            return Rest::None;
        }
        let longest = match seen.is_crowded {
            true => CROWDED_LEASE,
            false => LONGEST_LEASE,
        };
        if seen.is_led && !is_new && self.lease >= longest {
            return Rest::UntilTheLeaderLeaves;
        }
        if seen.is_led || is_new || seen.polls != last.polls {
            self.vacant = 0;
            self.lease = (self.lease * 2).min(longest);
        } else {
            self.vacant += 1;
            self.lease = LEASE;
        }
        Rest::For(self.lease)
    }
}

/// The shortest time between two checks for waiting threads.
const LEASE: Duration = Duration::from_micros(50);
/// The longest time between two checks, while threads wait again and again.
const LONGEST_LEASE: Duration = Duration::from_millis(1);
/// The longest time between two checks while cores are scarce, when the scheduler takes as long.
const CROWDED_LEASE: Duration = Duration::from_millis(4);
/// Leases without a waiting thread after which the keeper leads.
const VACANT_LEASES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn led(leads: u32) -> Seen {
        Seen {
            is_led: true,
            leads,
            ..Seen::default()
        }
    }

    fn vacant(polls: u32) -> Seen {
        Seen {
            polls,
            ..Seen::default()
        }
    }

    fn lease(rest: Rest) -> Duration {
        match rest {
            Rest::For(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_leads_at_first_and_where_nobody_has_waited_for_some_leases() {
        let mut naps = Naps::default();
        assert_eq!(naps.next(vacant(0)), Rest::None);
        naps.begin();
        for _ in 0..VACANT_LEASES {
            assert_eq!(lease(naps.next(vacant(0))), LEASE);
        }
        assert_eq!(naps.next(vacant(0)), Rest::None);
    }

    #[test]
    fn a_thread_that_spins_keeps_the_keeper_from_the_seat() {
        let mut naps = Naps::default();
        naps.begin();
        for polls in 1..100 {
            assert_eq!(
                lease(naps.next(vacant(polls))),
                (LEASE * 2u32.pow(polls.min(10))).min(LONGEST_LEASE)
            );
        }
        naps.end();
        assert_eq!(naps.next(vacant(100)), Rest::None);
    }

    #[test]
    fn it_leads_where_nobody_does_for_a_thread_that_waits_for_several_engines() {
        let mut naps = Naps::default();
        naps.begin();
        let is_wanted = true;
        assert_eq!(
            lease(naps.next(Seen {
                is_wanted,
                ..led(1)
            })),
            2 * LEASE
        );
        let vacant = vacant(1);
        assert_eq!(
            naps.next(Seen {
                is_wanted,
                ..vacant
            }),
            Rest::None
        );
    }

    #[test]
    fn leases_grow_while_leaders_change_and_end_behind_one_that_stays() {
        let mut naps = Naps::default();
        naps.begin();
        for leads in 1..100 {
            assert_eq!(
                lease(naps.next(led(leads))),
                (LEASE * 2u32.pow(leads.min(10))).min(LONGEST_LEASE)
            );
        }
        assert_eq!(lease(naps.next(led(100))), LONGEST_LEASE);
        assert_eq!(naps.next(led(100)), Rest::UntilTheLeaderLeaves);
        naps.begin();
        assert_eq!(lease(naps.next(led(101))), 2 * LEASE);
    }

    #[test]
    fn where_cores_are_scarce_it_naps_longer() {
        let mut naps = Naps::default();
        for leads in 1..20 {
            let is_crowded = true;
            naps.next(Seen {
                is_crowded,
                ..led(leads)
            });
        }
        assert_eq!(naps.lease, CROWDED_LEASE);
        assert_eq!(lease(naps.next(led(20))), LONGEST_LEASE);
    }
}
