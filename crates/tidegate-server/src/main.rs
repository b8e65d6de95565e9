//! The program `tidegate`.

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use tidegate_server::config;
use tidegate_server::serve::Serve;

/// Decides who may pass, for programs in any language.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about)]
struct Tidegate {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers clients until it is told to end. What it does if it is told nothing, too
    Serve(Serve),
    /// Check, show and describe configurations
    #[command(subcommand)]
    Config(config::command::Command),
}

fn main() -> ExitCode {
    let matches = Tidegate::command().get_matches();
    match Tidegate::from_arg_matches(&matches).map(|tidegate| tidegate.command) {
        Ok(Some(Command::Serve(serve))) => serve.run(innermost(&matches)),
        Ok(Some(Command::Config(command))) => command.run(innermost(&matches)),
        Ok(None) => serve_by_default(),
        Err(error) => error.exit(),
    }
}

/// What it does if it is told nothing. The environment may have something to say all the same.
fn serve_by_default() -> ExitCode {
    let matches = Tidegate::command().get_matches_from(["tidegate", "serve"]);
    match Tidegate::from_arg_matches(&matches).map(|tidegate| tidegate.command) {
        Ok(Some(Command::Serve(serve))) => serve.run(innermost(&matches)),
        Ok(_) => ExitCode::FAILURE,
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
