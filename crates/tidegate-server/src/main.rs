//! The program `tidegate`.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use tidegate_server::conformance::Conformance;
use tidegate_server::serve::Serve;
use tidegate_server::{ask, config};

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
    /// Ask a service that runs whether a key may pass: 0 if it may, 3 if it may not
    Check(ask::Check),
    /// Ask a service that runs how it is: 0 if it should be asked, 3 if it ends
    Health(ask::Health),
    /// Run vector files, and print what differs
    Conformance(Conformance),
    /// Print the manual page
    Man,
    /// Print what completes commands in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let matches = Tidegate::command().get_matches();
    match Tidegate::from_arg_matches(&matches).map(|tidegate| tidegate.command) {
        Ok(Some(Command::Serve(serve))) => serve.run(innermost(&matches)),
        Ok(Some(Command::Config(command))) => command.run(innermost(&matches)),
        Ok(Some(Command::Check(check))) => check.run(),
        Ok(Some(Command::Health(health))) => health.run(),
        Ok(Some(Command::Conformance(conformance))) => conformance.run(),
        Ok(Some(Command::Man)) => print(manual()),
        Ok(Some(Command::Completions { shell })) => print(completions(shell)),
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

/// One page for the program and all of its commands.
fn manual() -> Vec<u8> {
    let mut page = Vec::new();
    let mut command = Tidegate::command();
    command.build();
    let _ = clap_mangen::Man::new(command.clone()).render(&mut page); // into memory nothing can fail
    describe_subcommands(&command, &mut page);
    page.extend_from_slice(
        b".SH \"EXIT STATUS\"\n0: done, allowed. 1: it failed. 2: the command was not understood. 3: refused.\n",
    );
    page
}

/// Each of them, and those that they have.
fn describe_subcommands(command: &clap::Command, page: &mut Vec<u8>) {
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        let man = clap_mangen::Man::new(command.clone());
        let _ = man.render_synopsis_section(page);
        let _ = man.render_description_section(page);
        let _ = man.render_options_section(page);
        describe_subcommands(command, page);
    }
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Tidegate::command(), "tidegate", &mut script);
    script
}

/// Whoever reads may go away: that is no error.
fn print(text: Vec<u8>) -> ExitCode {
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}
