//! Recalls: the choice of the session that has to give credit back, and the handling of sessions
//! that do not answer.
#![forbid(unsafe_code)]

use super::{CHECKS_PER_WISH, CreditAction, CreditBroker, SessionId, holdings::Look};

impl CreditBroker {
    /// Recalls credit for `wanting` from the next session that has to give.
    pub(super) fn recall_one(&mut self, wanting: SessionId) -> Option<CreditAction> {
        let (idle_keeps, active_keeps) = if self.is_crowded() {
            (0, 0)
        } else {
            (self.settings.idle_keeps(), self.target(0))
        };
        let idle = self
            .holdings
            .richest_idle(idle_keeps)
            .map(|holder| (holder, idle_keeps));
        let active = || {
            let holder = self.holdings.richest_active(active_keeps);
            holder.map(|holder| (holder, active_keeps))
        };
        let ((session, kept), keeps) = idle.or_else(active)?;
        (session != wanting).then(|| self.recall(session, kept - keeps))
    }

    /// Takes back credit that a session holds.
    pub(super) fn recall(&mut self, session: SessionId, credit: u64) -> CreditAction {
        // A session that has not answered is taken for silent once half of the sessions that were
        // asked at the time have answered.
        let due = self.answers + (self.open.len() as u64).div_ceil(2).max(1);
        let mut opened = 0;
        self.holdings.change(session, |holding, _| {
            holding.recalled += credit;
            opened = *holding.due.get_or_insert(due);
        });
        self.open.insert((opened, session));
        CreditAction::Recall { session, credit }
    }

    /// Looks at a few active sessions that want nothing, on behalf of one that is busy.
    /// Returns whether one was found that has used nothing since it was looked at first.
    ///
    /// A session that keeps no more than a grain has nothing to lose by this, but an equal part is
    /// kept for each active session.
    pub(super) fn look_for_idle(
        &mut self,
        busy: SessionId,
        used: &impl Fn(SessionId) -> u64,
    ) -> bool {
        let until = used(busy) + self.held(busy);
        // In that time every session could have made a wish, and the witness used credit.
        let patience = 2 * self.holdings.len();
        for _ in 0..CHECKS_PER_WISH {
            let Some((session, holding)) = self.holdings.behind(self.hand) else {
                return false;
            };
            self.hand = session;
            if !holding.is_active || holding.ticket.is_some() {
                continue;
            }
            let now = used(session);
            let is_witness = |session| self.holdings.get(session).is_some_and(|one| one.is_active);
            let check = holding
                .check
                .filter(|check| check.used == now && is_witness(check.witness));
            let is_idle = check.is_some_and(|check| used(check.witness) > check.until);
            let check = match check {
                Some(check) if used(check.witness) > check.seen => Look {
                    seen: used(check.witness),
                    wishes: self.next_ticket,
                    ..check
                },
                Some(check) if self.next_ticket - check.wishes <= patience => check,
                // The witness, if there is one, has fallen silent.
                _ => Look {
                    used: now,
                    witness: busy,
                    until,
                    seen: used(busy),
                    wishes: self.next_ticket,
                },
            };
            self.holdings.change(session, |holding, _| {
                holding.check = Some(check);
                holding.is_active = !is_idle;
            });
            if is_idle {
                self.set_level();
                return true;
            }
        }
        false
    }

    pub(super) fn close_recall(&mut self, session: SessionId, due: Option<u64>) {
        if let Some(due) = due {
            self.open.remove(&(due, session));
        }
    }

    /// Writes off recalls that the slowest sessions have not answered in time.
    pub(super) fn find_overdue(&mut self) {
        while let Some(&(due, session)) = self.open.first()
            && due <= self.answers
        {
            self.open.pop_first();
            self.holdings.change(session, |holding, _| {
                holding.due = None;
                holding.is_overdue = true;
            });
        }
    }

    /// Notes that a waiting session has used its credit once more. When every session could have
    /// done so twice and none has answered a recall, none will answer: if all that were asked are
    /// silent, no answer of others shows it.
    pub(super) fn notice_silence(&mut self) {
        self.repeated += 1;
        if self.repeated > 2 * self.holdings.len()
            && let Some(&(due, _)) = self.open.last()
        {
            self.repeated = 0;
            // A session that has some credit goes on in the meantime, and may have the rest when it
            // comes.
            let has_nothing = |&session: &SessionId| {
                let holding = self.holdings.get(session);
                holding.is_none_or(|holding| holding.held < self.settings.grain)
            };
            if !self.waiting.values().any(has_nothing) {
                return;
            }
            self.answers = self.answers.max(due);
            self.find_overdue();
        }
    }
}
