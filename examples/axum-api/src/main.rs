//! Serves the API on port 8080 of this machine.

use std::error::Error;
use std::net::SocketAddr;

use example_axum_api::{USUAL, app};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("try: curl -i -H 'Authorization: Bearer alice' http://127.0.0.1:8080/notes");
    let app = app(USUAL)?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
