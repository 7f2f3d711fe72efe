use crate::units::*;
use fairlane_core::time::Nanos;
use proptest::prelude::*;

#[test]
fn units_have_the_right_size() {
    assert_eq!(parse_rate("1bit/s"), Ok(1));
    assert_eq!(parse_rate("20kbit/s"), Ok(20_000));
    assert_eq!(parse_rate(" 100 Mbit/s "), Ok(100_000_000));
    assert_eq!(parse_rate("2.5Gbit/s"), Ok(2_500_000_000));
    assert_eq!(parse_rate("1.000Tbit/s"), Ok(1_000_000_000_000));
    assert_eq!(parse_size("7B"), Ok(7));
    assert_eq!(parse_size("1.5KiB"), Ok(1536));
    assert_eq!(parse_size("1MiB"), Ok(1 << 20));
    assert_eq!(parse_size("2GiB"), Ok(2 << 30));
    assert_eq!(parse_size("64kB"), Ok(64_000));
    assert_eq!(parse_size("1MB"), Ok(1_000_000));
    assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
    assert_eq!(parse_duration("10us"), Ok(Nanos(10_000)));
    assert_eq!(parse_duration("0.001us"), Ok(Nanos(1)));
    assert_eq!(parse_duration("100ms"), Ok(Nanos::from_millis(100)));
    assert_eq!(parse_duration("1s"), Ok(Nanos(1_000_000_000)));
}

#[test]
fn the_shortest_exact_form_is_written() {
    let rates = [(0, "0bit/s"), (999, "999bit/s"), (2_500_000_000, "2.5Gbit/s"), (1_234_567_890, "1234567.89kbit/s")];
    for (rate, text) in rates {
        assert_eq!(format_rate(rate), text);
    }
    for (size, text) in [(0, "0B"), (1514, "1514B"), (1536, "1536B"), (65536, "64KiB"), (3 << 30, "3GiB")] {
        assert_eq!(format_size(size), text);
    }
    for (duration, text) in [(0, "0us"), (5, "0.005us"), (1_500_000, "1.5ms"), (60_000_000_000, "60s")] {
        assert_eq!(format_duration(Nanos(duration)), text);
    }
}

fn wrong<T: std::fmt::Debug>(read: Result<T, QuantityError>) -> String {
    read.unwrap_err().to_string()
}

#[test]
fn the_error_of_a_wrong_quantity_names_the_right_form() {
    let units = "must be a number and a unit (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s), such as \"100Mbit/s\", not";
    for text in
        ["", "100", "Mbit/s", "100Mbps", "100mbit/s", "-1Mbit/s", "1..5Mbit/s", ".5Mbit/s", "5.Mbit/s", "1e3bit/s"]
    {
        assert_eq!(wrong(parse_rate(text)), format!("{units} {text:?}"));
    }
    assert_eq!(wrong(parse_rate("0.5bit/s")), "must be a whole number of bits a second, not \"0.5bit/s\"");
    assert_eq!(wrong(parse_duration("0.0001us")), "must be a whole number of nanoseconds, not \"0.0001us\"");
    assert_eq!(wrong(parse_size("18446744073709551616B")), "is too large: \"18446744073709551616B\"");
    assert_eq!(wrong(parse_size("99999999999999999999GiB")), "is too large: \"99999999999999999999GiB\"");
}

proptest! {
    #[test]
    fn a_formatted_quantity_parses_to_itself(value: u64, shift in 0u32..64) {
        for value in [value, value >> shift, (value >> shift) / 1_000_000 * 1_000_000] {
            prop_assert_eq!(parse_rate(&format_rate(value)), Ok(value));
            prop_assert_eq!(parse_size(&format_size(value)), Ok(value));
            prop_assert_eq!(parse_duration(&format_duration(Nanos(value))), Ok(Nanos(value)));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9]{0,45}\\.?[0-9]{0,45} ?([kMGT]?bit/s|[kKMGi]{0,2}B|[um]?s)?", other: String) {
        for text in [text, other] {
            let _ = parse_rate(&text);
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }
    }
}
