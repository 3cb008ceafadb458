//! The services that the unit tests use.

use iceoryx2::service::{
    Service, local, messaging_pattern::MessagingPattern, service_hash::ServiceHash,
    service_name::ServiceName, static_config::message_type_details::TypeVariant,
};
use iceoryx2_link_backend::service_description::{
    PublishSubscribeTypes, ServiceDescriptor, ServiceTypes, TypeDescription,
};

/// Returns a publish-subscribe service with a payload of 8 bytes.
pub(crate) fn descriptor(name: &str, payload: &str) -> ServiceDescriptor {
    let name = ServiceName::new(name).expect("a name");
    let of = |name: &str, size| TypeDescription {
        variant: TypeVariant::FixedSize,
        type_name: name.to_owned(),
        size,
        alignment: 8,
    };
    ServiceDescriptor {
        name,
        hash: ServiceHash::new::<<local::Service as Service>::ServiceNameHasher>(
            &name,
            MessagingPattern::PublishSubscribe,
        ),
        types: ServiceTypes::PublishSubscribe(PublishSubscribeTypes {
            payload: of(payload, 8),
            user_header: of("()", 0),
        }),
    }
}
