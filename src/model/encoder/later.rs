//! Answers that are there, or on the host, only when the step has ended.

use std::rc::Rc;

use candle_core::{DType, Result, Tensor};

use crate::model::{Fault, Later, Output};
#[cfg(feature = "cuda")]
use crate::ops::card;

/// Vectors that a card sends to the host.
#[cfg(feature = "cuda")]
pub(super) struct OnItsWay(pub(super) card::Fetch);

#[cfg(feature = "cuda")]
impl Later for OnItsWay {
    fn is_there(&self) -> bool {
        self.0.is_there()
    }

    fn wait(&self) -> std::result::Result<Vec<Vec<f32>>, Fault> {
        Ok(self.0.wait()?)
    }
}

/// Rows of hidden states: of each its first token, and how many there are.
pub(super) struct KeptStates {
    pub(super) hidden: Tensor,
    pub(super) places: Vec<(usize, usize)>,
}

impl KeptStates {
    pub(super) fn copied(&self) -> Result<Vec<Vec<f32>>> {
        let of = |(start, length): &(usize, usize)| {
            self.hidden.narrow(0, *start, *length)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
        };
        self.places.iter().map(of).collect()
    }
}

impl Later for KeptStates {
    fn is_there(&self) -> bool {
        true
    }

    fn wait(&self) -> std::result::Result<Vec<Vec<f32>>, Fault> {
        Ok(self.copied()?)
    }
}

/// Vectors that are on the host already.
pub(super) struct Here(pub(super) Vec<Vec<f32>>);

impl Later for Here {
    fn is_there(&self) -> bool {
        true
    }

    fn wait(&self) -> std::result::Result<Vec<Vec<f32>>, Fault> {
        Ok(self.0.clone())
    }
}

/// Answers of which some are states.
pub(super) struct Mixed {
    /// Of all rows.
    pub(super) usual: Output,
    /// Of those that want them, in their order.
    pub(super) states: Rc<dyn Later>,
    pub(super) is_states: Vec<bool>,
}

impl Later for Mixed {
    fn is_there(&self) -> bool {
        let usual_is = match &self.usual {
            Output::Vectors(_) => true,
            Output::Later(later) => later.is_there(),
        };
        usual_is && self.states.is_there()
    }

    fn wait(&self) -> std::result::Result<Vec<Vec<f32>>, Fault> {
        let mut states = self.states.wait()?.into_iter();
        let usual = self.usual.clone().vectors()?.into_iter().zip(&self.is_states);
        Ok(usual.map(|(usual, is_states)| if *is_states { states.next().unwrap_or_default() } else { usual }).collect())
    }
}
