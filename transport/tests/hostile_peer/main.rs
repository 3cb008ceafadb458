//! A peer that sends anything: frames that look right and are not, and garbled frames of an honest
//! peer. Each is accepted or gives an error; nothing panics, and nothing grows beyond the agreed
//! bounds.

mod agreed;
mod frame;
mod garble;
mod moves;
mod transcript;
mod victim;

use garble::any_garble;
use moves::{Move, any_move};
use proptest::{collection::vec, prelude::*};
use transcript::transcript;
use victim::Victim;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn frames_that_look_right_are_refused_or_fine(moves in vec(any_move(), 1..80)) {
        let mut victim = Victim::new();
        for next in moves {
            match next {
                Move::Release => victim.release(),
                Move::Transmit => victim.transmit(),
                next => {
                    let frame = next.frame(&victim);
                    if victim.take(&frame.to_bytes()).is_err() {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn an_honest_transcript_garbled_is_refused_or_fine(garbles in vec(any_garble(), 0..6)) {
        let mut frames = transcript();
        let is_honest = garbles.is_empty();
        for garble in garbles {
            garble.apply(&mut frames);
        }
        let mut victim = Victim::new();
        for bytes in frames {
            if victim.take(&bytes).is_err() {
                prop_assert!(!is_honest);
                break;
            }
            victim.transmit();
        }
    }
}

#[test]
fn an_honest_transcript_is_believed() {
    let mut victim = Victim::new();
    for bytes in transcript() {
        victim.take(&bytes).unwrap();
        victim.transmit();
    }
    assert_eq!(victim.receivers[0].arrived, 6);
    assert!(victim.has_received_goodbye);
}
