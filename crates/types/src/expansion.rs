//! `$(VAR)` references in commands, arguments and environment values.

/// Replaces every `$(NAME)` in `input` by what `lookup` knows of `NAME`.
///
/// `$$` is an escaped dollar sign, so `$$(NAME)` comes out as `$(NAME)`. A reference that `lookup`
/// does not know, an unterminated one, and any other use of `$` stay as they are. What a
/// reference expands to is not expanded again.
pub fn expand(input: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(dollar) = rest.find('$') {
        output.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        rest = if let Some(escaped) = after.strip_prefix('$') {
            output.push('$');
            escaped
        } else if let Some(open) = after.strip_prefix('(') {
            match open.split_once(')') {
                Some((name, behind)) => {
                    match lookup(name) {
                        Some(value) => output.push_str(&value),
                        None => {
                            output.push_str("$(");
                            output.push_str(name);
                            output.push(')');
                        }
                    }
                    behind
                }
                None => {
                    output.push_str("$(");
                    open
                }
            }
        } else {
            output.push('$');
            after
        };
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lookup(name: &str) -> Option<String> {
        let value = match name {
            "VAR_A" => "A",
            "VAR_B" => "B",
            "VAR_C" => "C",
            "VAR_REF" => "$(VAR_A)",
            "VAR_EMPTY" => "",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn references_expand_and_all_else_stays() {
        for (input, expected) in [
            ("$(VAR_A)", "A"),
            ("$(VAR_A)-$(VAR_A)", "A-A"),
            ("$(VAR_A)-1", "A-1"),
            ("___$(VAR_B)___", "___B___"),
            ("___$(VAR_C)", "___C"),
            ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
            ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
            ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
            ("f000-$$VAR_A", "f000-$VAR_A"),
            ("foo\\$(VAR_C)bar", "foo\\Cbar"),
            ("foo\\\\$(VAR_C)bar", "foo\\\\Cbar"),
            ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
            ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
            ("foo$(VAR_EMPTY)bar", "foobar"),
            ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
            ("f00__(VAR_A)__", "f00__(VAR_A)__"),
            ("$?_boo_$!", "$?_boo_$!"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_DNE)", "$(VAR_DNE)"),
            ("$$$$$$(BIG_MONEY)", "$$$(BIG_MONEY)"),
            ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
            ("$$$$$$$(GOOD_ODDS)", "$$$$(GOOD_ODDS)"),
            ("$$$$$$$(VAR_A)", "$$$A"),
            ("$VAR_A)", "$VAR_A)"),
            ("${VAR_A}", "${VAR_A}"),
            ("$(VAR_B)_______$(A", "B_______$(A"),
            ("$(VAR_C)_______$(", "C_______$("),
            ("$(VAR_A)foobarzab$", "Afoobarzab$"),
            ("foo-\\$(VAR_A", "foo-\\$(VAR_A"),
            ("--$($($($($--", "--$($($($($--"),
            ("$($($($($--foo$(", "$($($($($--foo$("),
            ("foo0--$($($($(", "foo0--$($($($("),
            ("$(foo$$var)", "$(foo$$var)"),
            ("\n", "\n"),
            ("ü$(VAR_A)ü$", "üAü$"),
        ] {
            assert_eq!(expand(input, lookup), expected, "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollar_is_untouched(text in "[^$]{0,32}") {
            prop_assert_eq!(expand(&text, lookup), text);
        }

        #[test]
        fn doubling_every_dollar_escapes_anything(text in "[$()A-Z_]{0,32}") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), lookup), text);
        }
    }
}
