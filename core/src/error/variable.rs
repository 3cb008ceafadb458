//! The error of a variable of the environment.
#![forbid(unsafe_code)]

/// A variable that cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VariableError {
    /// The variable has a value that it may not have.
    #[error("{variable} is \"{value}\" in the environment; it may be {range}")]
    Value {
        /// The variable's name.
        variable: &'static str,
        /// The variable's value.
        value: String,
        /// The values that it may have.
        range: &'static str,
    },
    /// There is no such variable, and one of a similar name, which is probably meant. The node would
    /// run otherwise than was meant.
    #[error(
        "{variable} is set in the environment and is no variable of ibex; is {nearest} meant? \
         Rename it or unset it"
    )]
    Misspelt {
        /// The variable's name.
        variable: String,
        /// The variable that may have been meant.
        nearest: &'static str,
    },
}

ibex_base::debug_as_display!(VariableError);
