//! The program `tidegate`.

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use tidegate_server::config;

/// Decides who may pass, who waits and who is turned away.
#[derive(Parser, Debug)]
#[command(name = "tidegate", version, about)]
struct Tidegate {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Check, show and describe configurations
    #[command(subcommand)]
    Config(config::command::Command),
}

fn main() -> ExitCode {
    let matches = Tidegate::command().get_matches();
    match Tidegate::from_arg_matches(&matches).map(|tidegate| tidegate.command) {
        Ok(Command::Config(command)) => command.run(innermost(&matches)),
        Err(error) => error.exit(),
    }
}

/// The matches of the subcommand's subcommand: they know whether a value came from a flag or from the environment.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    match matches.subcommand() {
        Some((_, inner)) => innermost(inner),
        None => matches,
    }
}
