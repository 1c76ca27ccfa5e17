#!/usr/bin/env python3
"""Writes small encoders with random weights, and what transformers computes with them: tests/reference/data/<name>/.

usage: make_checkpoints.py [NAME ...]          default all
NAME: roberta, xlm-roberta, distilbert, modernbert, modernbert-rerank, bert-tokens, roberta-tokens, distilbert-tokens,
      modernbert-tokens

Each folder gets what transformers' save_pretrained writes (config.json, model.safetensors in f16, tokenizer.json) and
reference.json: for each text or pair its ids, the mean and the first of the last hidden states, and the logits, computed
by transformers in f64 from the f16 weights. Of those that label tokens it has the logits of each token, and what the
pipeline for them makes of a text by every strategy. The vocabularies are learned from the licence's text; word pieces of equal
worth come in an order of their own in every run, so that running this again changes the files without a reason.
Needs torch, transformers, sentencepiece and protobuf.
"""
import json
import os
import sys
import tempfile

import sentencepiece
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LICENCE = os.path.join(HERE, "..", "..", "LICENSE-APACHE")
VOCABULARY, WIDTH, LAYERS, HEADS, INNER, LONGEST = 320, 64, 2, 4, 96, 64

LONG = "Any contribution intentionally submitted for inclusion in the work shall be under the terms of this licence. " * 4
TEXTS = [
    ("the licensed work", None),
    ("Derivative  works, in source or\tobject form!", None),
    ("", None),
    ("Grüße aus Köln, señor: 東京 🦀 naïve", None),
    ("ﬁle ｆｕｌｌ width", None),
    (" leading and trailing ", None),
    (LONG, None),
    ("who may copy it?", "Each contributor grants a perpetual licence to reproduce the work."),
    ("warranty", ""),
    ("which terms?", LONG),
    (LONG, "as is, without warranties"),
    (LONG, LONG),
]


def corpus():
    with open(LICENCE, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()] + [text for text, _ in TEXTS if text]


def byte_level(longest):
    """RoBERTa's: pairs of bytes, merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus(), trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    return transformers.RobertaTokenizer(vocab=learned["vocab"], merges=merges, model_max_length=longest)


# Some of what SentencePiece's own rules do, which take 240 KB: ligatures, wide letters, spaces.
RULES = {"ﬁ": "fi", "ﬂ": "fl", "\t": " ", "\u00a0": " ", "\u3000": " "}
RULES |= {chr(0xFEE0 + ord(letter)): letter for letter in "abcdefghijklmnopqrstuvwxyz"}


def pieces(longest):
    """XLM-RoBERTa's: SentencePiece's unigrams with a map of characters, the first ids as fairseq has them."""
    with tempfile.TemporaryDirectory() as folder:
        rules, learned = os.path.join(folder, "rules.tsv"), os.path.join(folder, "learned")
        with open(rules, "w", encoding="utf-8") as file:
            for source, target in RULES.items():
                file.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_prefix=learned, vocab_size=VOCABULARY - 2, model_type="unigram",
            normalization_rule_tsv=rules, minloglevel=1,
        )
        with open(learned + ".model", "rb") as file:
            model = sentencepiece_model_pb2.ModelProto.FromString(file.read())
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(piece.piece, piece.score) for piece in model.pieces[3:]] + [("<mask>", 0.0)]
    charsmap = model.normalizer_spec.precompiled_charsmap
    return transformers.XLMRobertaTokenizer(
        vocab=vocabulary, _spm_precompiled_charsmap=charsmap, model_max_length=longest
    )


def word_pieces(longest):
    """DistilBERT's, which are BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special))
    return transformers.DistilBertTokenizer(vocab=tokenizer.get_vocab(), model_max_length=longest)


def byte_level_modern(longest):
    """ModernBERT's: pairs of bytes, merged, with BERT's special tokens behind all others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(special), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(special)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=longest, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        pad_token="[PAD]", mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
    )


def roberta_sizes(tokenizer):
    return {
        "vocab_size": len(tokenizer), "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": INNER, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5,
    }


def roberta():
    tokenizer = byte_level(LONGEST)
    config = transformers.RobertaConfig(**roberta_sizes(tokenizer), num_labels=3)
    return tokenizer, transformers.RobertaForSequenceClassification(config)


def xlm_roberta():
    tokenizer = pieces(LONGEST)
    config = transformers.XLMRobertaConfig(**roberta_sizes(tokenizer), num_labels=1)
    return tokenizer, transformers.XLMRobertaForSequenceClassification(config)


def distilbert():
    tokenizer = word_pieces(LONGEST)
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=INNER, num_labels=2,
        max_position_embeddings=LONGEST, pad_token_id=0,
    )
    return tokenizer, transformers.DistilBertForSequenceClassification(config)


def modernbert_of(layers, **options):
    """Windows so narrow that they matter in texts of 64 tokens, bases so small that positions do, and heads of a size that
    a card's kernels know."""
    tokenizer = byte_level_modern(LONGEST)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=INNER, max_position_embeddings=LONGEST, global_attn_every_n_layers=2, local_attention=10,
        global_rope_theta=1000.0, local_rope_theta=100.0, bos_token_id=special["cls_token_id"],
        eos_token_id=special["sep_token_id"], **special, **options,
    )
    return tokenizer, transformers.ModernBertForSequenceClassification(config)


def modernbert():
    return modernbert_of(3, num_labels=3)


def modernbert_rerank():
    """All biases, and all states in the classifier's view."""
    biases = {f"{part}_bias": True for part in ("attention", "mlp", "norm", "classifier")}
    return modernbert_of(2, num_labels=1, classifier_pooling="mean", classifier_activation="relu", **biases)


LABELS = dict(enumerate(["O", "B-PER", "I-PER", "LOC"]))


def bert_tokens():
    tokenizer = word_pieces(LONGEST)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=INNER,
        max_position_embeddings=LONGEST, pad_token_id=0, id2label=LABELS,
    )
    return tokenizer, transformers.BertForTokenClassification(config)


def roberta_tokens():
    tokenizer = byte_level(LONGEST)
    sizes = roberta_sizes(tokenizer) | {"num_hidden_layers": 1, "num_attention_heads": 2}
    return tokenizer, transformers.RobertaForTokenClassification(transformers.RobertaConfig(**sizes, id2label=LABELS))


def distilbert_tokens():
    tokenizer = word_pieces(LONGEST)
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=WIDTH, n_layers=1, n_heads=2, hidden_dim=INNER, max_position_embeddings=LONGEST,
        pad_token_id=0, id2label=LABELS,
    )
    return tokenizer, transformers.DistilBertForTokenClassification(config)


def modernbert_tokens():
    tokenizer, model = modernbert_of(1, id2label=LABELS, classifier_activation="relu")
    return tokenizer, transformers.ModernBertForTokenClassification(model.config)


MODELS = {
    "roberta": roberta, "xlm-roberta": xlm_roberta, "distilbert": distilbert, "modernbert": modernbert,
    "modernbert-rerank": modernbert_rerank, "bert-tokens": bert_tokens, "roberta-tokens": roberta_tokens,
    "distilbert-tokens": distilbert_tokens, "modernbert-tokens": modernbert_tokens,
}


def randomize(model, seed):
    """Weights so large that attention, positions and every activation matter; all rows of all tables, padding's too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "embeddings." in name and parameter.dim() == 2:
                parameter.copy_(noise)
            elif parameter.dim() == 2:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)
            else:
                norm = "norm" in name.lower() and name.endswith("weight")
                parameter.copy_(noise * 0.2 + (1.0 if norm else 0.0))


def outputs(tokenizer, model, texts):
    """The ids, mean, first and logits of texts (or pairs) that are computed together."""
    firsts, seconds = [text for text, _ in texts], [pair for _, pair in texts]
    pairs = None if seconds[0] is None else seconds
    inputs = tokenizer(firsts, pairs, truncation=True, max_length=LONGEST, padding=True, return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state
        logits = model(**inputs).logits
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        states = hidden[row][mask]
        yield inputs["input_ids"][row][mask], states.mean(0), states[0], logits[row]


def saved(name):
    """The folder with a new checkpoint, and its tokenizer: what was written is what is computed with."""
    tokenizer, model = MODELS[name]()
    randomize(model, len(name))
    folder = os.path.join(HERE, "data", name)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


STRATEGIES = ["none", "simple", "first", "average", "max"]


def write_tokens(name):
    """The same of a model that labels tokens."""
    folder, tokenizer = saved(name)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float64).eval()
    pipeline = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer, ignore_labels=[])
    items = []
    for text in [text for text, pair in TEXTS if pair is None and text and text != LONG] + [LONG[:90]]:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        spans = {}
        for strategy in STRATEGIES:
            found = pipeline(text, aggregation_strategy=strategy)
            spans[strategy] = [
                [span.get("entity", span.get("entity_group")), round(float(span["score"]), 6), span["start"], span["end"]]
                for span in found
            ]
        logits = [[round(value, 6) for value in row] for row in logits.tolist()]
        items.append({"text": text, "input_ids": ids[0].tolist(), "logits": logits, "spans": spans})
    write_reference(folder, items)


def write_reference(folder, items):
    made_by = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    with open(os.path.join(folder, "reference.json"), "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
        file.write(f'{{"made_by": {json.dumps(made_by)}, "items": [\n{lines}\n]}}\n')


def write(name):
    folder, tokenizer = saved(name)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    items = []
    for text, pair in TEXTS:
        ids, mean, first, logits = next(outputs(tokenizer, model, [(text, pair)]))
        floats = {"mean": mean, "first": first, "logits": logits}
        floats = {key: [round(value, 7) for value in values.tolist()] for key, values in floats.items()}
        items.append({"text": text, "pair": pair, "input_ids": ids.tolist()} | floats)
    # Padded to the longest, transformers says the same.
    for kind in (lambda pair: pair is None, lambda pair: pair is not None):
        alone = [item for item in items if kind(item["pair"])]
        together = outputs(tokenizer, model, [(item["text"], item["pair"]) for item in alone])
        for item, (ids, mean, _, logits) in zip(alone, together):
            assert item["input_ids"] == ids.tolist()
            assert torch.allclose(torch.tensor(item["mean"], dtype=mean.dtype), mean, rtol=0, atol=1e-6)
            assert torch.allclose(torch.tensor(item["logits"], dtype=mean.dtype), logits, rtol=0, atol=1e-6)
    write_reference(folder, items)


for name in sys.argv[1:] or MODELS:
    (write_tokens if name.endswith("-tokens") else write)(name)
