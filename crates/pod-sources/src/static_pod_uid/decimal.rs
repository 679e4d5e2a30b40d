use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// A decimal number of any length: `digits * 10^-scale`, as Go's `inf.Dec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decimal {
    pub(super) negative: bool,
    /// Values from 0 to 9, the highest first, no leading zeros; empty for zero.
    digits: Vec<u8>,
    pub(super) scale: i32,
}

impl Decimal {
    /// `digits` are ASCII digits.
    pub(super) fn new(negative: bool, digits: &str, scale: i32) -> Self {
        let digits = digits.bytes().map(|digit| digit - b'0').collect();
        Self { negative, digits, scale }.normalised()
    }

    pub(super) fn from_i64(value: i64, scale: i32) -> Self {
        Self::new(value < 0, &value.unsigned_abs().to_string(), scale)
    }

    fn normalised(mut self) -> Self {
        let zeros = self.digits.iter().take_while(|digit| **digit == 0).count();
        self.digits.drain(..zeros);
        self.negative &= !self.digits.is_empty();
        self
    }

    pub(super) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// Brings the number to `scale`; what is cut off is rounded away from zero.
    pub(super) fn round_up(&self, scale: i32) -> Self {
        let mut digits = self.digits.clone();
        let mut rounded = self.clone();
        rounded.scale = scale;
        if scale >= self.scale {
            if !digits.is_empty() {
                digits.resize(digits.len() + (scale - self.scale).unsigned_abs() as usize, 0);
            }
            rounded.digits = digits;
            return rounded;
        }
        let cut = (self.scale - scale).unsigned_abs() as usize;
        let lost = digits.split_off(digits.len().saturating_sub(cut));
        rounded.digits = digits;
        if lost.iter().any(|digit| *digit != 0) {
            rounded.digits = sum(&rounded.digits, &[1]);
        }
        rounded.normalised()
    }

    pub(super) fn add(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        let (left, right) = (self.round_up(scale), other.round_up(scale));
        let (negative, digits) = if left.negative == right.negative {
            (left.negative, sum(&left.digits, &right.digits))
        } else if compare(&left.digits, &right.digits).is_ge() {
            (left.negative, difference(&left.digits, &right.digits))
        } else {
            (right.negative, difference(&right.digits, &left.digits))
        };
        Self { negative, digits, scale }.normalised()
    }

    pub(super) fn doubled(&self, times: u32) -> Self {
        let mut doubled = self.clone();
        for _ in 0..times {
            doubled.digits = sum(&doubled.digits, &doubled.digits);
        }
        doubled
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let scale = self.scale.max(other.scale);
        let (left, right) = (self.round_up(scale), other.round_up(scale));
        match (left.negative, right.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => compare(&left.digits, &right.digits),
            (true, true) => compare(&right.digits, &left.digits),
        }
    }

    /// The digits as one binary number, in words of 64 bits, the lowest first.
    pub(super) fn words(&self) -> Vec<u64> {
        let mut words: Vec<u64> = Vec::new();
        for digit in &self.digits {
            let mut carry = u128::from(*digit);
            for word in &mut words {
                let value = u128::from(*word) * 10 + carry;
                #[allow(clippy::cast_possible_truncation)]
                // The low half; the high half is carried.
                {
                    *word = value as u64;
                }
                carry = value >> 64;
            }
            if let Ok(carry @ 1..) = u64::try_from(carry) {
                words.push(carry);
            }
        }
        words
    }
}

fn compare(left: &[u8], right: &[u8]) -> Ordering {
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

fn sum(left: &[u8], right: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    let mut digits: Vec<u8> = (0..left.len().max(right.len()))
        .map(|place| {
            let value = digit_at(left, place) + digit_at(right, place) + carry;
            carry = value / 10;
            value % 10
        })
        .collect();
    if carry > 0 {
        digits.push(carry);
    }
    digits.reverse();
    digits
}

/// `left` is not the smaller one.
fn difference(left: &[u8], right: &[u8]) -> Vec<u8> {
    let mut borrow = 0;
    let mut digits: Vec<u8> = (0..left.len())
        .map(|place| {
            let (have, take) = (digit_at(left, place), digit_at(right, place) + borrow);
            borrow = u8::from(have < take);
            have + 10 * borrow - take
        })
        .collect();
    digits.reverse();
    digits
}

/// Counted from the lowest.
fn digit_at(digits: &[u8], place: usize) -> u8 {
    digits.len().checked_sub(place + 1).map_or(0, |index| digits[index])
}
