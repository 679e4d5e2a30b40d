//! One task per pod uid: asks the brain what to do and runs it.
