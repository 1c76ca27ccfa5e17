//! Texts of real words, so that a tokenizer has ordinary work to do.

use rand::RngExt;
use rand::rngs::StdRng;

/// Common English words: nearly every WordPiece vocabulary has each of them as one token, so that the number of words
/// is about the number of tokens. How many tokens a server really computed is in its answers.
const WORDS: &str = "the of and to in is that it was for on are as with his they at be this from have or by one had not \
    but what all were when we there can an your which their said if do will each about how up out them then she many \
    some so these would other into has more her two like him see time could no make than first been its who now people \
    my made over did down only way find use may water long little very after words called just where most know get \
    through back much before go good new write our used me man too any day same right look think also around another \
    came come work three word must because does part even place well such here take why things help put years different \
    away again off went old number great tell men say small every found still between name should home big give air \
    line set own under read last never us left end along while might next sound below saw something thought both few \
    those always looked show large often together asked house world going want school important until form food keep \
    children feet land side without boy once animals life enough took sometimes four head above kind began almost live \
    page got earth need far hand high year mother light parts country father let night following picture being study \
    second eyes soon times story boys since white days ever paper hard near sentence better best across during today \
    others however sure means knew it try told young miles sun ways thing whole hear example heard several change answer \
    room sea against top turned learn point city play toward five using himself usually";

/// A text of `count` words, at least one.
pub(super) fn text_of(count: u32, rng: &mut StdRng) -> String {
    // Splitting the list at each draw would cost more than the draw: the table is made once.
    static TABLE: std::sync::LazyLock<Vec<&str>> = std::sync::LazyLock::new(|| WORDS.split_whitespace().collect());
    let mut text = String::with_capacity(count as usize * 6);
    for index in 0..count.max(1) {
        if index > 0 {
            text.push(' ');
        }
        text.push_str(TABLE[rng.random_range(0..TABLE.len())]);
    }
    text
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_text_has_as_many_words_as_asked_for() {
        let mut rng = StdRng::seed_from_u64(5);
        for (asked, words) in [(0, 1), (1, 1), (2, 2), (400, 400)] {
            let text = text_of(asked, &mut rng);
            assert_eq!(text.split(' ').count(), words);
            assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b' '));
        }
        assert_ne!(text_of(50, &mut rng), text_of(50, &mut rng));
    }
}
