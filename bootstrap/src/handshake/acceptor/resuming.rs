//! The acceptor's answer to a dialer that resumes a session.

use std::sync::Arc;

use super::super::ResumedSession;
use super::super::conversation::Conversation;
use super::super::proof::ResumptionClaim;
use super::{AcceptorEvent, AcceptorPart, ResumeAnswer, State};
use crate::error::HandshakeError;
use crate::fabric::FabricKind;
use crate::message::{HandshakeMessage, Resume, ResumeRefusal, Resumed, Text};
use crate::party::Party;
use crate::resumption::ResumableSessions;

impl AcceptorPart {
    /// Takes up the session, or refuses to.
    pub(super) fn resume(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        resume: &Resume,
    ) {
        let answer = match self.answer(conversation, resume) {
            Ok(answer) => answer,
            Err(error) => return conversation.fail(error),
        };
        if resume.fabric == FabricKind::Verbs {
            self.state = State::AwaitResumePair(answer);
            return;
        }
        let ResumeAnswer { session, proof } = answer;
        conversation.send(&HandshakeMessage::Resumed(Resumed { proof }));
        conversation.succeed(AcceptorEvent::Resumed(session));
    }

    /// Answers a resumption. A peer without the secret learns nothing about epochs.
    fn answer(
        &self,
        conversation: &Conversation<AcceptorEvent>,
        resume: &Resume,
    ) -> Result<ResumeAnswer, HandshakeError> {
        let refused = |refusal| HandshakeError::NotResumed { refusal };
        let find = |sessions: &Arc<dyn ResumableSessions>| sessions.find(&resume.session_id);
        let session = self.resumable.as_ref().and_then(find);
        let session = session.ok_or(refused(ResumeRefusal::NoSuchSession))?;
        let prologue = conversation.prologue();
        let claim = ResumptionClaim {
            session_id: &resume.session_id,
            epoch: resume.epoch,
            fabric: resume.fabric,
            prologue: &prologue,
        };
        if !claim.is_proven(Party::Dialer, &session.secret, &resume.proof) {
            return Err(refused(ResumeRefusal::WrongProof));
        }
        if conversation.authenticated_as() != session.authenticated_as {
            return Err(refused(ResumeRefusal::OtherIdentity));
        }
        if resume.epoch <= session.epoch {
            return Err(refused(ResumeRefusal::OldEpoch));
        }
        if let Some(why) = session.obstacle(resume.fabric) {
            let why = Text::new(&why);
            return Err(HandshakeError::NotOverFabric { why });
        }
        let proof = claim.proof(Party::Acceptor, &session.secret);
        let session = ResumedSession {
            session_id: resume.session_id,
            epoch: resume.epoch,
            fabric: resume.fabric,
        };
        Ok(ResumeAnswer { session, proof })
    }
}
