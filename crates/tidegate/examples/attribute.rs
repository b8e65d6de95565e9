//! Limits on plain functions. Run it with `cargo run -p tidegate --features macros --example attribute`.
//!
//! Each line says what was called and what came of it. The limits are by the day, so that it prints the same each time.

use tidegate::attribute::Denied;
use tidegate::{ConcurrencyLimiter, rate_limit};

/// A text message for each number, and not too many for all of them together.
#[rate_limit("2/day", key = number)]
#[rate_limit("4/day")]
fn text(number: &str, message: &str) -> Result<usize, Denied> {
    Ok(number.len() + message.len())
}

/// What is dear is done once a day for each city; otherwise there is something cheaper.
#[rate_limit(algorithm = sliding_log, limit = 1, per = "1 day", key = city, otherwise = climate)]
fn weather(city: &str) -> String {
    format!("{city} as measured")
}

fn climate(city: &str) -> String {
    format!("{city} as usual")
}

/// A printer prints one page at a time, and none while it is being mended.
struct Printer {
    trays: ConcurrencyLimiter,
}

#[rate_limit(limiter = self.trays)]
impl Printer {
    fn print(&self, page: u32) -> Result<u32, Denied> {
        Ok(page)
    }

    fn mend(&self) -> Result<Result<u32, Denied>, Denied> {
        Ok(self.print(2)) // which finds the only place taken, by the mending
    }
}

fn main() {
    println!("{}", told().join("\n"));
}

/// What was called, and what came of it.
pub(crate) fn told() -> Vec<String> {
    let texts =
        ["555-1", "555-1", "555-1", "555-2", "555-3", "555-4"].map(|number| match text(number, "hello") {
            Ok(_) => format!("text {number}: sent"),
            Err(denied) => {
                format!("text {number}: not sent, for {}", denied.limit().expect("one of its own"))
            }
        });
    let weather = ["Oslo", "Oslo", "Rome"].map(|city| format!("weather: {}", weather(city)));
    let printer = Printer { trays: ConcurrencyLimiter::new(1) };
    let print = [
        format!("print: {:?}", printer.print(1)),
        format!(
            "print while mending: {}",
            printer.mend().expect("nobody prints").expect_err("it is being mended")
        ),
    ];
    texts.into_iter().chain(weather).chain(print).collect()
}
