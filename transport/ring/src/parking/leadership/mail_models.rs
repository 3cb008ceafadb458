//! Models of engines that leave mail for each other: neither sleeps through a letter in any order
//! of events, and no thread needs two engines at once.

use ibex_base::sync::{Arc, lock, thread};

use super::{models::ModelBell, *};

/// An engine that its own thread leads, and the mail that others leave for it.
struct Mailbox {
    /// Letters taken.
    leadership: Leadership<u32>,
    mail: Mutex<u32>,
    bell: ModelBell,
}

impl Mailbox {
    /// A mailbox that one other engine writes to.
    fn new() -> Self {
        Self {
            leadership: Leadership::new(0),
            mail: Mutex::new(0),
            bell: ModelBell::new(1),
        }
    }

    /// Leaves a letter. The caller may have its own engine's lock.
    fn post(&self) {
        *lock(&self.mail) += 1;
        self.leadership.mark();
        self.leadership.rouse(|| self.bell.ring());
    }

    /// Leads until a letter is here, and answers it under the engine's lock.
    fn lead(&self, answer: impl FnOnce()) {
        loop {
            let mut engine = self.leadership.lock();
            self.bell.drain();
            if self.leadership.take_mark() {
                *engine += std::mem::take(&mut *lock(&self.mail));
            }
            if *engine > 0 {
                return answer();
            }
            self.leadership.sleep(
                engine,
                || false,
                |_, stay| (!stay).then_some(()),
                |()| self.bell.sleep(),
            );
        }
    }
}

/// An engine writes to another, which answers: a session is placed there, and a peer's run reported
/// back. Mutants: rouse_fence_missing, sleep_fence_missing.
#[test]
fn loom_letters_are_taken_and_answered() {
    loom::model(|| {
        let both = Arc::new([Mailbox::new(), Mailbox::new()]);
        let first = {
            let both = both.clone();
            thread::spawn(move || {
                let [here, there] = &*both;
                let engine = here.leadership.lock();
                there.post();
                drop(engine);
                there.bell.leave();
                here.lead(|| ());
            })
        };
        let [there, here] = &*both;
        here.lead(|| there.post());
        there.bell.leave();
        first.join().unwrap();
    });
}
