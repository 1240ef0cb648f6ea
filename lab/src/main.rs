//! The program `hugekit-lab`, which `hugekit lab` starts.

mod command;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use hugekit_terminal::{events, outcome, text};

use command::Lab;

fn main() -> ExitCode {
    // This program again, started as the VMM of an experiment.
    hugekit_guests::small_vmm::run_if_asked();
    let lab = Lab::parse();
    events::print();
    outcome::exit_code(lab.run(), Lab::command, text::say)
}

#[cfg(test)]
mod tests {
    use hugekit_testing::pages;

    use super::*;

    #[test]
    fn every_command_of_a_page_is_accepted() {
        pages::check("hugekit lab", &Lab::command(), 30);
    }

    #[test]
    fn command_of_a_page_that_is_not_accepted_is_found() {
        let refused = |text, is_whole| pages::why_refused(text, is_whole, &Lab::command());
        assert_eq!(refused("hugekit lab stores --rounds 3 # a comment", true), None);
        assert_eq!(refused("hugekit lab [EXPERIMENT… | --all] [--json FILE|-]", false), None);
        assert!(refused("hugekit lab nothing", true).is_some());
        assert!(refused("hugekit lab --rounds", true).is_some());
        assert!(refused("hugekit lab --memory SIZE --nothing N", false).is_some());
    }
}
