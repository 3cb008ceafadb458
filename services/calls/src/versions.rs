//! The message versions of a service's two channels.

use ibex_core::{
    codec::{Codec, Describer, MAX_TEXT_BYTES, Schema, SchemaInfo},
    extend::{MessageVersion, OpenFailure, message_version},
};

/// Returns the message version of requests. The version covers both types, so that a caller whose
/// reply type differs gets an error before any request is executed.
pub(crate) fn request_version<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>>()
-> Result<MessageVersion, OpenFailure> {
    call_version::<Q, R, C>(message_version::<Q, C>()?.alignment)
}

/// Returns the message version of the replies.
pub(crate) fn reply_version<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>>()
-> Result<MessageVersion, OpenFailure> {
    call_version::<Q, R, C>(message_version::<R, C>()?.alignment)
}

fn call_version<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>>(
    alignment: u32,
) -> Result<MessageVersion, OpenFailure> {
    let (request, reply) = (message_version::<Q, C>()?, message_version::<R, C>()?);
    let mut schema = format!("call of {} for {}", request.schema, reply.schema);
    while schema.len() > MAX_TEXT_BYTES {
        schema.pop();
    }
    let fingerprint = SchemaInfo::of::<CallSchema<Q, R, C>>("ibex/call 1", &[]).fingerprint;
    Ok(MessageVersion {
        fingerprint: fingerprint.0,
        schema,
        alignment,
    })
}

/// The header's layout and both types.
struct CallSchema<Q: ?Sized, R: ?Sized, C>(crate::Types<Q, R, C>);

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Schema for CallSchema<Q, R, C> {
    fn describe(to: &mut Describer) {
        to.compound("Call", &[describe_by::<Q, C>, describe_by::<R, C>]);
    }
}

/// By its fingerprint, which is all that a codec gives.
fn describe_by<T: ?Sized, C: Codec<T>>(to: &mut Describer) {
    to.atom(&C::schema().fingerprint.to_string());
}
