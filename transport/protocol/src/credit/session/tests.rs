//! Tests of both sides of session credit against each other.

use super::*;

#[test]
fn credit_comes_back_once_more_than_half_is_owed() {
    let mut grant = CreditGrant::new(100);
    let mut credit = CreditUse::new(100);
    credit.charge(50);
    grant.arrived(50).unwrap();
    assert_eq!(grant.owed(), None);
    credit.charge(1);
    grant.arrived(1).unwrap();
    assert_eq!(grant.owed(), Some(151));
    grant.notified(151);
    credit.grant(151).unwrap();
    assert_eq!(credit.available(), 100);
    credit.grant(151).unwrap();
    assert_eq!(credit.available(), 100, "said again it says nothing new");
    assert!(credit.grant(150).is_err(), "and it does not go back");
}

#[test]
fn one_beyond_the_grant_is_an_overrun() {
    let mut grant = CreditGrant::new(100);
    grant.arrived(100).unwrap();
    let (used, granted) = (101, 100);
    assert_eq!(grant.arrived(1), Err(CreditOverrun { used, granted }));
    assert!(grant.arrived(u64::MAX).is_err());
}

#[test]
fn a_recall_takes_present_credit_at_once_and_the_rest_when_it_comes() {
    let mut grant = CreditGrant::new(10);
    grant.arrived(4).unwrap();
    grant.recall(7);
    assert_eq!(grant.take_report().returned, 4);
    assert_eq!(grant.recall_due(), Some((3, false)));
    grant.recall_notified();
    assert_eq!(grant.recall_due(), None);
    grant.arrived(2).unwrap();
    assert_eq!(grant.take_report().returned, 2);
    grant.surrendered(1).unwrap();
    assert_eq!(
        grant.take_report(),
        CreditReport {
            returned: 1,
            is_idle: true,
            ..CreditReport::default()
        }
    );
    assert_eq!(grant.lent(), 3);
    grant.surrendered(1).unwrap();
    assert_eq!(grant.take_report().returned, 0, "said again");
}

#[test]
fn an_idle_sender_surrenders_the_recalled_credit_and_no_more() {
    let mut credit = CreditUse::new(10);
    credit.recall(6, false).unwrap();
    credit.charge(2);
    assert_eq!(credit.surrender(0), Some(4));
    assert_eq!(credit.surrender(0), None);
    assert_eq!(credit.available(), 4);
    assert!(!credit.should_ask());
    credit.recall(1000, true).unwrap();
    assert_eq!(credit.surrender(1), Some(7), "the frame costs the last one");
    credit.charge(1);
    assert_eq!(credit.available(), 0);
    assert!(credit.should_ask());
    credit.asked();
    assert!(!credit.should_ask());
    credit.grant(11).unwrap();
    credit.recall(1001, true).unwrap();
    assert!(credit.should_ask(), "it was answered, for one turn");
}

#[test]
fn a_recall_of_all_is_told_even_if_nothing_of_it_is_out() {
    let mut grant = CreditGrant::new(3);
    grant.arrived(3).unwrap();
    grant.recall(3);
    assert_eq!((grant.lent(), grant.owed()), (0, None));
    assert_eq!(grant.recall_due(), Some((0, true)));
}

#[test]
fn a_turn_comes_back_by_itself() {
    let mut grant = CreditGrant::new(0);
    grant.give(2, Term::Turn);
    assert_eq!(grant.owed(), Some(2));
    grant.notified(2);
    assert_eq!(grant.recall_due(), Some((2, true)));
    grant.recall_notified();
    grant.arrived(2).unwrap();
    assert_eq!((grant.lent(), grant.owed()), (0, None));
    assert!(grant.is_wanted(2));
    let report = grant.take_report();
    assert!(report.wants && report.returned == 2, "{report:?}");
    assert!(grant.is_wanted(1) && !grant.take_report().wants, "late");
    assert!(!grant.is_wanted(3), "never granted");
}

#[test]
fn surrenders_that_cannot_be_are_told_apart() {
    let mut grant = CreditGrant::new(10);
    grant.recall(6);
    assert!(matches!(
        grant.surrendered(1),
        Err(BadSurrender::NotRecalled { .. })
    ));
    grant.recall_notified();
    grant.arrived(8).unwrap();
    assert!(matches!(
        grant.surrendered(3),
        Err(BadSurrender::NotHeld(_))
    ));
    grant.surrendered(2).unwrap();
    assert!(matches!(grant.surrendered(1), Err(BadSurrender::Shrank(_))));
}
