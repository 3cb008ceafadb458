//! The queue from both of its ends.

use std::error::Error;

use ibex_core::{Fabric, Node, Policy};
use ibex_request_queue::{Submitter, Worker};

#[test]
fn a_queue_is_bounded_and_keeps_its_order() -> Result<(), Box<dyn Error>> {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let builder = || Node::builder().fabric(fabric, Policy::Require);
        let far = builder().listen("127.0.0.1:0").build()?;
        let near = builder().build()?;
        let to_far = near.connect(far.local_addr().ok_or("no address")?)?;
        let to_near = far.accept()?;
        assert_eq!(to_far.fabric(), fabric);

        let mut submitter = Submitter::open(&to_far, "jobs", 2)?;
        let mut worker = Worker::open(&to_near, "jobs")?;
        assert_eq!(submitter.submit(b"one")?, 1);
        assert_eq!(submitter.try_submit(b"two")?, Some(2));
        assert_eq!(submitter.try_submit(b"three")?, None, "it is full");

        let one = worker.take()?.ok_or("no request")?;
        assert_eq!((one.bytes(), worker.running()), (&b"one"[..], 1));
        let two = worker.take()?.ok_or("no request")?;
        assert_eq!(submitter.try_submit(b"three")?, None, "neither is done");
        one.done();
        submitter.wait_done(1)?;
        assert_eq!(submitter.submit(b"three")?, 3);
        two.done();
        assert_eq!(worker.running(), 0);

        submitter.close();
        let three = worker.take()?.ok_or("no request")?;
        assert_eq!(three.bytes(), b"three");
        three.done();
        assert!(worker.take()?.is_none(), "the end");
    }
    Ok(())
}
