//! Sends a hundred requests to an address, at the rate that the partner allows.

use std::env;
use std::error::Error;
use std::time::Instant;

use example_outbound::{PARTNER, client};
use http::Request;
use http_body_util::Empty;
use tower_service::Service;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).ok_or("usage: example-outbound http://host:port/path")?;
    let client = client(PARTNER)?;
    let began = Instant::now();
    for n in 1..=100 {
        let request = Request::get(&address).body(Empty::new())?;
        let response = client.clone().call(request).await?;
        println!("{:6} ms  {n:3}  {}", began.elapsed().as_millis(), response.status());
    }
    Ok(())
}
