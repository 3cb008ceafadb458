//! The I/O thread of an engine: it leads while no thread that waits does.
//!
//! ```text
//!              vacant, and nobody waited for some leases
//!     napping ------------------------------------------> leading
//!      |   ^ <-------------------------------------------  |
//!      |   |            somebody claims the seat
//!      |   | the leader leaves
//!      v   |
//!     standing by: one thread has led for longer than the longest nap
//! ```
//!
//! A nap ends by time, a *lease* later. So whatever a thread leaves behind that waited and
//! waits no more moves on after one lease, two threads never sleep in the epoll set, and a
//! process at rest has no timed wake-ups: the I/O thread leads then, or stands by. Leases
//! become longer while somebody waits in each of them, so that many processes with few
//! cores do not spend them on naps.
//!
//! Where the I/O thread has cores of its own nobody claims its seat, nor while a thread waits for
//! several engines: it could turn one of them, and would sleep over the others' sockets.

use std::{
    sync::{Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use ibex_ring::parking::{Parker, Wakers, thread_waker};

use super::EventLoop;

/// Runs until the node is closed or gone.
pub(crate) fn run(event_loop: &Weak<EventLoop>, core: Option<usize>) {
    if let Some(core) = core
        && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
    {
        tracing::warn!(
            core,
            "the I/O thread could not be pinned; it runs where it may"
        );
    }
    // Naps are shorter than what timers are late by otherwise.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    Wakers::prepare();
    let (waker, parker) = thread_waker();
    let mut naps = Naps::default();
    while let Some(event_loop) = event_loop.upgrade() {
        #[cfg(record_writes)]
        let _turning = ibex_base::sync::recorded::turning(&*event_loop);
        // First, so that who makes the node end finds whom to wake.
        event_loop.keeper.get_or_init(|| waker.clone());
        if event_loop.is_over() {
            event_loop.end_own_work();
            return;
        }
        event_loop.do_own_work();
        match naps.next(event_loop.seen()) {
            Rest::None => {
                if let Some(_lead) = event_loop.engine.try_keep() {
                    event_loop.keep(&parker);
                    naps.begin();
                }
            }
            Rest::For(lease) => {
                if parker.park(Instant::now().checked_add(lease)) {
                    naps.end();
                } else if naps.have_seen(event_loop.seen()) {
                    event_loop.turn_if_vacant();
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
            looks: self.presence.load(Ordering::Relaxed),
            is_crowded: self.shares_cores.load(Ordering::Relaxed),
            is_wanted: self.spanned.load(Ordering::SeqCst) > 0,
        }
    }

    /// Leads until somebody claims the seat.
    fn keep(&self, parker: &Parker) {
        while !self.engine.is_claimed() && !self.is_over() {
            self.lead(parker, None);
            if parker.forget() {
                self.do_own_work();
            }
        }
    }

    /// Moves what was left behind.
    fn turn_if_vacant(&self) {
        while self.engine.is_vacant() && self.poll_ready() {}
    }

    /// Wakes the I/O thread, to lead at once if nobody does.
    pub(crate) fn summon_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.wake_by_ref();
        }
    }
}

/// The keeper's view of the threads that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// A thread leads.
    is_led: bool,
    /// How often one began to.
    leads: u32,
    /// A count that changes while a thread looks.
    looks: u32,
    /// More threads want to run than there are cores.
    is_crowded: bool,
    /// A thread waits that leads nowhere.
    is_wanted: bool,
}

/// The keeper's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Leads, if nobody does.
    None,
    /// Naps.
    For(Duration),
    /// Stands by.
    UntilTheLeaderLeaves,
}

/// When the keeper looks again.
#[derive(Debug)]
struct Naps {
    lease: Duration,
    /// Leases in which nobody waited; the last of `VACANT_LEASES` ends the napping.
    vacant: u32,
    last: Seen,
}

/// At first nobody waits: the keeper leads.
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
    /// Begins to nap, as somebody waits again.
    fn begin(&mut self) {
        self.vacant = 0;
        self.lease = LEASE;
    }

    /// Ends the naps, as the keeper is wanted.
    fn end(&mut self) {
        self.vacant = VACANT_LEASES;
    }

    /// Returns whether nobody has waited since.
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
        if seen.is_led || is_new || seen.looks != last.looks {
            self.vacant = 0;
            self.lease = (self.lease * 2).min(longest);
        } else {
            self.vacant += 1;
            self.lease = LEASE;
        }
        Rest::For(self.lease)
    }
}

/// The shortest time between two looks at whether somebody waits.
const LEASE: Duration = Duration::from_micros(50);
/// And the longest, while somebody waits again and again.
const LONGEST_LEASE: Duration = Duration::from_millis(1);
/// The longest while cores are scarce, when the scheduler takes as long.
const CROWDED_LEASE: Duration = Duration::from_millis(4);
/// Leases without anybody who waits before the keeper leads.
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

    fn vacant(looks: u32) -> Seen {
        Seen {
            looks,
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
    fn who_spins_keeps_it_from_the_seat() {
        let mut naps = Naps::default();
        naps.begin();
        for looks in 1..100 {
            assert_eq!(
                lease(naps.next(vacant(looks))),
                (LEASE * 2u32.pow(looks.min(10))).min(LONGEST_LEASE)
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
    fn leases_grow_while_others_lead_and_end_behind_one_who_stays() {
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
