//! Serves the functions on port 8080 of this machine.

use std::error::Error;

use example_attribute::app;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("try: curl -i -d hello http://127.0.0.1:8080/texts/555-1");
    axum::serve(listener, app()).await?;
    Ok(())
}
