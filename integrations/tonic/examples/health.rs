//! tonic's health service, as generated, over the fabric that the two nodes choose.
//!
//! `cargo run --release -p ibex-tonic --example health`

use std::error::Error;

use ibex::{Driver, Node};
use ibex_tonic::{Connector, Incoming};
use tonic::transport::{Endpoint, Server};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Node::builder()
        .driver(Driver::Tasks)
        .listen("127.0.0.1:0")
        .build()?;
    let address = server.local_addr().ok_or("it listens")?;
    let (reporter, health) = tonic_health::server::health_reporter();
    let incoming = Incoming::bind(&server)?;
    let serving = tokio::spawn(
        Server::builder()
            .add_service(health)
            .serve_with_incoming(incoming),
    );

    let node = Node::builder().driver(Driver::Tasks).build()?;
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect_with_connector(Connector::new(node.clone()))
        .await?;
    let mut client = HealthClient::new(channel);
    let service = HealthCheckRequest {
        service: "store".to_owned(),
    };
    for status in [ServingStatus::Serving, ServingStatus::NotServing] {
        reporter.set_service_status("store", status).await;
        let answer = client.check(service.clone()).await?.into_inner();
        println!("store: {:?}", answer.status());
    }
    for session in node.stats().sessions {
        println!("over {}", session.fabric);
    }
    serving.abort();
    Ok(())
}
