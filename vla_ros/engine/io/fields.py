"""Every field of other people's config.json: used here, irrelevant here, or refused by its name.

A field that changes the mathematics and that nobody read would act in silence: pi0.5's
``use_visual_memory`` adds no tensor, and a policy trained with it would look at one frame. So each
config has a :class:`~vla_ros.engine.io.field_table.FieldTable`, by which it is parsed, checked and
written: what this engine reads, what no output depends on, with why, and what is refused but for
the one value that is computed here. A field that is nowhere in it is refused by its name.

The names are those of the authors' own classes; ``test/support/config_fields.py`` reads them there
and says which are in no table. Sources: lerobot 0.3.3, 0.4.4, 0.6.1 and main,
``configs/policies.py`` and ``policies/*/configuration_*.py``; Isaac-GR00T
``configs/model/gr00t_n1d6.py``, ``gr00t_n1d7.py``; H-EmbodVis/TurboVLA 2d42436 and c999c05
``turbovla/models/configuration.py``; what BitVLA's class wrote; openvla
``configuration_prismatic.py``; transformers 4.40.1 and 5.23 ``configuration_utils.py``,
``LlamaConfig``, ``Qwen2Config``. No torch here.
"""

from __future__ import annotations

from dataclasses import replace

from vla_ros.engine.io.field_table import Field, FieldTable, Fixed, Row, Written, by_hand, plain

DEEPEST = 1000  # layers; more is a damaged file, and would fill the memory with their names
STRATEGIES = ("resize-naive", "resize-crop", "letterbox")

_TRAINING = "training alone"
BY_LEROBOT = "; LeRobot itself may run it: policy: lerobot, after `vla-ros lerobot setup`"
SMOLVLM2_500M = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
FAST_TOKENIZER = "lerobot/fast-action-tokenizer"
#: How pi0.5's prompt has the state: the robot's values, or zeros behind them.
IN_PROMPT = ROBOT, PADDED = "robot", "padded"
_SPEED = "how fast LeRobot computes it"
#: This project's own, in any config.json (:mod:`~.rates`).
_RATE = {"action_rate_hz": "when actions are executed, not what they are"}
_LEROBOT_IDLE = {
    **_RATE,
    "push_to_hub repo_id private tags license pretrained_path pretrained_revision": "where it is"
    " published",
    "device use_amp": "device and number format are options here",
    "use_peft": "an adapter is told by its files",
    "n_action_steps": "how much of a chunk is executed is the execution's",
    "rtc_config": "how chunks are continued is the execution's",
    "empty_cameras": "LeRobot masks them; here they are left out",
    "optimizer_lr optimizer_betas optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm"
    " scheduler_warmup_steps scheduler_decay_steps scheduler_decay_lr": _TRAINING,
}
_VLM_IDLE = {
    **_LEROBOT_IDLE,
    "freeze_vision_encoder train_expert_only train_state_proj": _TRAINING,
    "compile_model compile_mode use_cache": _SPEED,
}
#: What LeRobot's own config.json says beside: how it trains, compiles and publishes. Nothing here
#: reads it; its own programs and converters may look for any of it.
_BESIDE = {
    "device": "cpu", "use_amp": False, "use_peft": False, "push_to_hub": True, "repo_id": None,
    "private": None, "tags": None, "license": None, "pretrained_path": None,
    "pretrained_revision": None, "rtc_config": None, "empty_cameras": 0, "compile_model": False,
    "compile_mode": "max-autotune", "optimizer_betas": [0.9, 0.95], "optimizer_eps": 1e-8,
    "scheduler_warmup_steps": 1000, "scheduler_decay_steps": 30000, "scheduler_decay_lr": 2.5e-6,
}  # fmt: skip
_GEMMAS = {
    **_BESIDE, "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m",
    "dtype": "float32",
}  # fmt: skip
_RELATIVE = {
    "use_relative_actions": False, "relative_exclude_joints": ["gripper"],
    "action_feature_names": None, "gradient_checkpointing": False,
}  # fmt: skip
_OPTIMIZER = {
    "optimizer_lr": 2.5e-5, "optimizer_weight_decay": 0.01, "optimizer_grad_clip_norm": 1.0,
}  # fmt: skip
_BESIDE_PI = {
    **_GEMMAS, "time_sampling_beta_alpha": 1.5, "time_sampling_beta_beta": 1.0,
    "time_sampling_scale": 0.999, "time_sampling_offset": 0.001, **_RELATIVE,
    "freeze_vision_encoder": False, "train_expert_only": False, **_OPTIMIZER,
}  # fmt: skip
_FEATURES: dict[str, Row] = {
    "n_obs_steps": Fixed(1),
    **by_hand("input_features output_features"),
}
_CHUNK: dict[str, Row] = {
    "type": "kind",
    **_FEATURES,
    "chunk_size": Field("horizon", 50),
    "n_action_steps": Written("horizon"),
    "max_state_dim": Field("state_width", 32),
    "max_action_dim": Field("action_width", 32),
}
_PERIODS: dict[str, Row] = {
    **plain("min_period max_period"),
    "row_time": None,  # this project's own, as state_in_prompt and shapes are
}
_PI: dict[str, Row] = {
    **_CHUNK,
    "tokenizer_max_length": Field("max_text", 48),
    "image_resolution": Field("image_size", 224, by="square"),
    "shapes": None,
    "num_inference_steps": Field("steps", 10, (1, 1000)),
    **_PERIODS,
    "use_relative_actions": Field("relative", None, sparse=True),
}
_STATE_IN_PROMPT = Field("state_in_prompt", "", ("", *IN_PROMPT), sparse=True)
_PI_IDLE = {
    **_VLM_IDLE,
    "dtype": "the number format is an option here",
    "gradient_checkpointing time_sampling_beta_alpha time_sampling_beta_beta time_sampling_scale"
    " time_sampling_offset": _TRAINING,
    "relative_exclude_joints action_feature_names": "the processors say it",
    "attention_implementation": _SPEED,
}
_PI_USED = "normalization_mapping paligemma_variant action_expert_variant"
#: what an aloha of Physical Intelligence's asks for, in its first port
_ALOHA: dict[str, tuple[object, ...]] = {
    "adapt_to_pi_aloha": (False,),
    "use_delta_joint_actions_aloha": (False,),
}
#: of lerobot's first port of pi0, whose values `vla-ros convert` carries over to today's names
_PI_FIRST: dict[str, tuple[object, ...]] = {
    "resize_imgs_with_padding": ([224, 224],),
    "proj_width": (1024,),
    "num_steps": (10,),
}
PI0 = FieldTable(_PI, _PI_IDLE, {**_ALOHA, **_PI_FIRST}, _PI_USED, beside=_BESIDE_PI)
PI05 = FieldTable(
    {
        **_PI,
        "tokenizer_max_length": Field("max_text", 200),
        "rtc_training_max_delay": Field("max_delay", 0, (0,), sparse=True),
        "state_in_prompt": _STATE_IN_PROMPT,
    },
    {
        **_PI_IDLE,
        "memory_frames memory_stride memory_temporal_attention_every": "of a memory: refused",
    },
    {"use_visual_memory": (False,), "use_proprioceptive_memory": (False,)},
    _PI_USED,
    BY_LEROBOT,
    _BESIDE_PI,
)
PI0_FAST = FieldTable(
    {
        **_CHUNK,
        "tokenizer_max_length": Field("max_text", 200),
        "image_resolution": Field("image_size", 224, by="square"),
        "shapes": None,
        "max_decoding_steps": Field("max_tokens", 256, (2, 4096)),
        "fast_skip_tokens": Field("skip", 128, (0,)),
        "validate_action_token_prefix": "strict",
        "action_tokenizer_name": Field("action_tokenizer", FAST_TOKENIZER),
        "use_relative_actions": Field("relative", None, sparse=True),
        "state_in_prompt": _STATE_IN_PROMPT,
    },
    {
        **_LEROBOT_IDLE,
        "compile_model compile_mode use_kv_cache": _SPEED,
        "dtype": "the number format is an option here",
        "gradient_checkpointing max_action_tokens": _TRAINING,
        "relative_exclude_joints action_feature_names": "the processors say it",
        "action_expert_variant": "it has no expert",
        "text_tokenizer_name": "the processors say it",
    },
    {"temperature": (0,)},
    "normalization_mapping paligemma_variant",
    BY_LEROBOT,
    {
        **_GEMMAS, **_RELATIVE, **_OPTIMIZER, "max_action_tokens": 256,
        "text_tokenizer_name": "google/paligemma-3b-pt-224", "temperature": 0.0,
        "use_kv_cache": True,
    },
)  # fmt: skip
SMOLVLA = FieldTable(
    {
        **_CHUNK,
        "tokenizer_max_length": Field("max_text", 48),
        "resize_imgs_with_padding": Field("image_size", 512, by="square"),
        "shapes": None,
        "num_steps": Field("steps", 10, (1, 1000)),
        **_PERIODS,
        "vlm_model_name": Field("vlm", SMOLVLM2_500M),
        "num_vlm_layers": Written("shapes.text.layers"),
        **by_hand("attention_mode self_attn_every_n_layers expert_width_multiplier"),
    },
    {
        **_VLM_IDLE,
        "load_vlm_weights": "the weights are the checkpoint's",
        "prefix_length pad_language_to": "padding is masked",
    },
    {**_ALOHA, "add_image_special_tokens": (False,)},
    "normalization_mapping num_expert_layers",
    BY_LEROBOT,
    {
        **_BESIDE, "adapt_to_pi_aloha": False, "use_delta_joint_actions_aloha": False,
        "use_cache": True, "freeze_vision_encoder": True, "train_expert_only": True,
        "train_state_proj": True, "optimizer_lr": 1e-4, "optimizer_weight_decay": 1e-10,
        "optimizer_grad_clip_norm": 10, "load_vlm_weights": False,
        "add_image_special_tokens": False, "prefix_length": -1, "pad_language_to": "longest",
        "num_expert_layers": -1,
    },
)  # fmt: skip
#: The hand of an Evo-1 that is only open or closed.
EVO1_GRIPPER = FieldTable(
    {
        "binarize_gripper": Fixed(True),
        "gripper_index": Written("index"),
        "gripper_threshold": Field("threshold", by="real"),
        "gripper_below_threshold_value": Field("below", by="real"),
        "gripper_above_threshold_value": Field("above", by="real"),
    }
)
EVO1 = FieldTable(
    {
        "type": Fixed("evo1"),
        **_FEATURES,
        "n_action_steps": Written("horizon"),
        "image_resolution": None,
        "vlm_model_name": "vlm",
        "vlm_num_layers": Written("text.layers"),
        "embed_dim": Written("width"),
        "num_categories": "embodiments",
        "default_embodiment_id": Written("embodiment"),
        "shapes": None,
        "chunk_size": Field("horizon", 50, (2,)),
        "num_inference_timesteps": Field("steps", 32, (1, 1000)),
        **plain("max_state_dim=state_width max_action_dim=action_width max_views=slots"),
        **plain(
            "num_layers=blocks num_heads=heads hidden_dim=hidden state_hidden_dim=state_hidden"
        ),
        # a mask of so many tokens squared is held; the published one has 1024
        "max_text_length": Field("max_text", rule=(1, 8192)),
    },
    {
        **_LEROBOT_IDLE,
        "training_stage dropout enable_gradient_checkpointing gradient_checkpointing_use_reentrant"
        " finetune_vlm finetune_language_model finetune_vision_model finetune_action_head"
        " apply_training_stage_defaults": _TRAINING,
        "vlm_dtype": "the number format is an option here",
        "use_flash_attn": _SPEED,
        "task_field": "the instruction comes from a topic",
        "embodiment_id_field": "the option embodiment says it",
    },
    {"return_cls_only": (False,), "action_head": ("flowmatching",)},
    f"normalization_mapping postprocess_action_dim {' '.join(EVO1_GRIPPER.rows)}",
    BY_LEROBOT,
)
ACT = FieldTable(
    {
        "type": Fixed("act"),
        **_FEATURES,
        "chunk_size": Field("horizon", 100),
        "n_action_steps": Written("horizon"),
        "vision_backbone": Field("backbone", rule=("resnet18", "resnet34")),
        "pre_norm": "pre_norm",
        **plain("dim_model=width n_heads=heads dim_feedforward=mlp n_encoder_layers=layers"),
        "feedforward_activation": Field("activation", rule=("relu", "gelu")),
        **plain("n_decoder_layers=decoder_layers use_vae=vae latent_dim=latent"),
        "n_vae_encoder_layers": "vae_layers",
    },
    {
        **_LEROBOT_IDLE,
        "pretrained_backbone_weights": "the weights are the checkpoint's",
        "temporal_ensemble_coeff": "how chunks are joined is the execution's",
        "dropout kl_weight optimizer_lr_backbone": _TRAINING,
    },
    {"replace_final_stride_with_dilation": (False, 0)},
    "normalization_mapping",
    BY_LEROBOT,
)
LEROBOT = {
    "pi0": PI0, "pi05": PI05, "smolvla": SMOLVLA, "pi0_fast": PI0_FAST, "evo1": EVO1, "act": ACT,
}  # fmt: skip

_BOOKS = "transformers' bookkeeping"
#: ``PretrainedConfig`` of transformers 4 and 5: what it writes for any model.
_TRANSFORMERS_IDLE = {
    "architectures auto_map transformers_version _name_or_path name_or_path _commit_hash"
    " _attn_implementation attn_implementation _attn_implementation_internal"
    " _attn_implementation_autoset is_composition finetuning_task id2label label2id num_labels"
    " problem_type task_specific_params tokenizer_class prefix torchscript use_bfloat16"
    " tf_legacy_loss return_dict output_hidden_states output_attentions use_return_dict"
    " keys_to_ignore_at_inference _output_attentions quantization_config_class": _BOOKS,
    "torch_dtype dtype": "the number format is an option here",
    "use_cache": "how fast transformers computes it",
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty"
    " temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size"
    " encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores"
    " return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values"
    " exponential_decay_length_penalty suppress_tokens begin_suppress_tokens"
    " decoder_start_token_id": "free text, which no policy writes",
    "is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention"
    " tie_encoder_decoder sep_token_id": "of models with an encoder",
    "bos_token_id eos_token_id pad_token_id": "the tokenizer says it",
}
_TRANSFORMERS_ONLY: dict[str, tuple[object, ...]] = {
    "pruned_heads": ({},),
    "chunk_size_feed_forward": (0,),
}
#: How a checkpoint acts: what no released file has, and every converted one.
_ACTIONS: dict[str, Row] = {
    "n_action_bins": Field("bins", rule=(2,)),
    **plain("image_sequence_len=images action_chunk=chunk parallel_decoding=parallel"),
    "proprio_dim": Field("proprio_dim", rule=(0,)),
    **plain("action_dim normalise_by_minmax=minmax"),
}
OPENVLA = FieldTable(
    {
        **by_hand("model_type llm_backbone_id vision_config use_fused_vision_backbone"),
        "image_resize_strategy": Field("resize", rule=STRATEGIES),
        "letterbox_fill": Written("fill"),
        "pad_to_multiple_of": None,
        "action_vocab": Written("action_vocab"),
        "empty_token_id": Written("empty_token_id"),
        **_ACTIONS,
        "vq": None,
        "max_delay": Field("max_delay", rule=(0,)),
        "stop_token": Written("stop_token"),
        **by_hand("norm_stats text_config"),
    },
    {
        **_RATE,
        **_TRANSFORMERS_IDLE,
        "arch_specifier hf_llm_id timm_model_ids image_sizes": "vision_backbone_id and"
        " llm_backbone_id say it",
        "llm_max_length": "longer prompts are refused before",
        "output_projector_states": "what else the class returns",
        "tie_word_embeddings vocab_size": "text_config says it",
    },
    _TRANSFORMERS_ONLY,
    "vision_backbone_id timm_override_act_layers quantization_config",
)
#: Sizes of transformers' language models and of its SigLIP.
LLAMA = FieldTable(
    {
        **plain("vocab_size hidden_size intermediate_size num_hidden_layers=layers"),
        "num_attention_heads": "heads",
    }
)
SIGLIP = FieldTable(
    {
        **plain("hidden_size=width intermediate_size=mlp num_hidden_layers=depth"),
        **plain("num_attention_heads=heads image_size patch_size=patch"),
    }
)
TEXT = FieldTable(
    {
        "model_type": Written("kind"),
        **LLAMA.rows,
        "num_hidden_layers": Field("layers", rule=(1, DEEPEST)),
        "num_key_value_heads": Written("kv_heads"),
        "rope_theta": Written("rope_theta"),
        "rms_norm_eps": "rms_eps",
        "tie_word_embeddings": "tied",
        "head_dim": None,
    },
    {
        **_TRANSFORMERS_IDLE,
        "attention_dropout initializer_range pretraining_tp": _TRAINING,
        "max_position_embeddings": "RoPE has no table, and prompts are short",
        "sliding_window max_window_layers": "of use_sliding_window, which is refused",
        "layer_types": "of sliding windows, which are refused",
    },
    _TRANSFORMERS_ONLY,
    "rope_scaling rope_parameters hidden_act attention_bias mlp_bias use_sliding_window"
    " partial_rotary_factor",
)
#: BitVLA's is LLaVA's class with BitNet and a SigLIP of few bits.
BITVLA = FieldTable(
    {
        "vision_feature_layer": Fixed(-2),
        "vision_feature_select_strategy": None,
        "projector_hidden_act": Fixed("gelu"),
        "vocab_size": Written("text.vocab_size"),
        "n_action_bins": _ACTIONS["n_action_bins"],
        **by_hand("text_config vision_config"),
        **plain("parallel_decoding=parallel action_chunk=chunk image_sequence_len=images"),
        **plain("action_dim proprio_dim normalise_by_minmax=minmax"),
        "proprio_dim": _ACTIONS["proprio_dim"],
    },
    {
        **_RATE,
        **_TRANSFORMERS_IDLE,
        "image_seq_length image_token_index ignore_index": "where images go, the tower says",
        "tie_word_embeddings vocab_size": "text_config says it",
    },
    _TRANSFORMERS_ONLY,
    "model_type multimodal_projector_bias norm_stats",
    beside={"architectures": ["BitVLAForActionPrediction"], "model_type": "bitvla"},
)
BITVLA_TEXT = replace(TEXT, only={**TEXT.only, "weight_bits": (1,), "input_bits": (8,)})
BITVLA_VISION = FieldTable(
    {
        **SIGLIP.rows,
        "num_hidden_layers": Field("depth", rule=(2, DEEPEST)),
        **by_hand("hidden_act vit_weight_bits vit_act_bits"),
    },
    {
        **_TRANSFORMERS_IDLE,
        "attention_dropout": _TRAINING,
        "vision_use_head projection_dim": "of the pooled vector, which LLaVA does not take",
    },
    {
        **_TRANSFORMERS_ONLY,
        "num_channels": (3,),
        "layer_norm_eps": (1e-6,),
        "vit_weight_quant_method": ("absmean",),
        "vit_act_quant_method": ("absmax_per_token",),
    },
    "model_type",
    beside={"model_type": "siglip_vision_model"},
)
_BLOCKS_BESIDE = {"positional_embeddings": None, "dropout": 0.2, "final_dropout": True}
#: The head of all of GR00T's versions.
GROOT_HEAD = FieldTable(
    {
        **plain("action_horizon max_action_dim max_state_dim hidden_size backbone_embedding_dim"),
        **plain("num_timestep_buckets max_num_embodiments"),
        "num_inference_timesteps": Field("num_inference_timesteps", rule=(1, 1000)),
        "input_embedding_dim": Written("width"),
        **by_hand("add_pos_embed max_seq_len"),
        "use_vlln": "use_vlln",
        **by_hand("use_alternate_vl_dit attend_text_every_n_blocks"),
        "diffusion_model_cfg": FieldTable(
            {
                "positional_embeddings": Fixed(None),
                **plain("num_layers num_attention_heads attention_head_dim"),
                "norm_type": Fixed("ada_norm"),
                "output_dim": Written("hidden_size"),
                "interleave_self_attention": Fixed(True),
            },
            only={"activation_fn": ("gelu-approximate",), "attention_bias": (True,)},
            beside=_BLOCKS_BESIDE,
            strict=False,
        ),
        "vl_self_attention_cfg": FieldTable(
            {
                "positional_embeddings": Fixed(None),
                "num_layers": Field("vl_layers", 0, (0,)),
                "num_attention_heads": "vl_heads",
                "attention_head_dim": None,
            },
            beside=_BLOCKS_BESIDE,
            strict=False,
        ),
    },
    only={"state_history_length": (1,)},
)
#: Of GR00T's N1.6 and N1.7, whose images, states and actions ``processor_config.json`` describes.
_GROOT_IDLE = {
    **_RATE,
    **_TRANSFORMERS_IDLE,
    "model_dtype load_bf16 backbone_trainable_params_fp32 compute_dtype": "the number format is an"
    " option here",
    "model_revision": "the weights are the checkpoint's",
    "tune_top_llm_layers tune_llm tune_visual tune_projector tune_diffusion_model tune_vlln"
    " noise_beta_alpha noise_beta_beta noise_s state_dropout_prob state_additive_noise_scale"
    " attn_dropout random_rotation_angle color_jitter_params extra_augmentation_config"
    " rtc_max_delay_steps": _TRAINING,
    "use_flash_attention": "how fast NVIDIA's code computes it",
    "collator_overwrite_image_inputs eagle_collator": "how images are batched",
    "image_crop_size image_target_size shortest_image_edge crop_fraction"
    " use_albumentations_transforms letter_box_transform formalize_language"
    " apply_sincos_state_encoding use_percentiles use_relative_action use_mean_std"
    " exclude_state_in_processor": "processor_config.json says it",
}
_GROOT: dict[str, Row] = {
    **by_hand("model_type model_name select_layer"),
    **GROOT_HEAD.rows,
    "shapes": None,
}
_GROOT_ONLY: dict[str, tuple[object, ...]] = {
    **_TRANSFORMERS_ONLY,
    "reproject_vision": (False,),
    "state_history_length": (1,),
    "strict_action_padding_mask": (False,),
    "exclude_state": (False,),
}
GROOT_N17 = FieldTable(_GROOT, _GROOT_IDLE, {**_GROOT_ONLY, "backbone_model_type": ("qwen",)})
GROOT_N16 = FieldTable(_GROOT, _GROOT_IDLE, {**_GROOT_ONLY, "backbone_model_type": ("eagle",)})
#: ``processor_kwargs`` of N1.6's and N1.7's processor_config.json.
GROOT_PROCESSOR = FieldTable(
    by_hand(
        "modality_configs use_percentiles clip_outliers apply_sincos_state_encoding"
        " use_relative_action exclude_state image_target_size image_crop_size shortest_image_edge"
        " crop_fraction letter_box_transform use_albumentations formalize_language"
    ),
    {
        "random_rotation_angle color_jitter_params extra_augmentation_config state_dropout_prob":
        _TRAINING,
        "model_name model_type max_state_dim max_action_dim max_action_horizon": "config.json says"
        " it",
        "statistics embodiment_id_mapping": "files of their own say it",
        "transformers_loading_kwargs": "how NVIDIA's code loads its tokenizer",
        "tactile_state_keys tactile_input_shape tactile_embed_dim": "of use_tactile: refused",
    },
    {"use_tactile": (False,), "use_mean_std": (False,)},
)  # fmt: skip
#: The two parts of N1.5's config.json.
GROOT_N15 = FieldTable(
    {},
    {
        **_RATE,
        **_TRANSFORMERS_IDLE,
        "compute_dtype model_dtype": "the number format is an option here",
        "hidden_size": "the two parts say it",
    },
    _TRANSFORMERS_ONLY,
    "model_type backbone_cfg action_head_cfg action_horizon action_dim shapes",
)
GROOT_N15_BACKBONE = FieldTable(
    {"select_layer": None},
    {
        "tune_llm tune_visual": _TRAINING,
        "eagle_path": "the published Eagle's sizes are known here",
        "load_bf16": "the number format is an option here",
        "use_flash_attention": "how fast NVIDIA's code computes it",
    },
    {"reproject_vision": (False,), "project_to_dim": ()},
)
GROOT_N15_HEAD = FieldTable(
    {name: row for name, row in GROOT_HEAD.rows.items() if name != "max_action_dim"},
    {
        **_TRANSFORMERS_IDLE,
        "model_dtype": "the number format is an option here",
        "max_action_dim": "action_dim says it",
        "noise_beta_alpha noise_beta_beta noise_s tune_projector tune_diffusion_model"
        " load_pretrained_det_decode_layer_path detection_coeff freeze_decode_layer"
        " expand_batch": _TRAINING,
    },
    {**_TRANSFORMERS_ONLY, "use_alternate_vl_dit": (False,)},
    "action_dim num_target_vision_tokens",
)
#: Of ``shapes``, this project's own, in transformers' words.
QWEN3_TEXT = FieldTable(
    {
        "num_hidden_layers": Field("layers", 28),
        **plain("vocab_size hidden_size intermediate_size num_attention_heads=heads"),
        **plain("num_key_value_heads=kv_heads head_dim rope_theta rms_norm_eps=rms_eps"),
    },
    only={"attention_bias": (False,)},
)
QWEN3_VL_VISION = FieldTable(
    {
        **plain("hidden_size depth num_heads intermediate_size out_hidden_size patch_size"),
        "spatial_merge_size": "spatial_merge_size",
        "temporal_patch_size": Fixed(2),  # an image is one moment, shown twice
        **by_hand("num_position_embeddings deepstack_visual_indexes"),
    }
)
EAGLE_VISION = FieldTable(
    {
        **plain("hidden_size=width num_hidden_layers=depth num_attention_heads=heads"),
        **plain("intermediate_size=mlp patch_size=patch"),
        "num_patches": None,
        "image_size": Written("image_size"),
    },
    only={"use_rope": (False,), "use_windows_attn": (False,)},
)

_ENCODER_IDLE = {
    "model_name_or_path local_files_only": "the weights are the checkpoint's",
    "frozen force_eval_when_frozen": _TRAINING,
    "attention_implementation": "how fast transformers computes it",
}
#: TurboVLA's, whose encoders' sizes come from elsewhere: `vla-ros convert` writes ``shapes``.
TURBOVLA = FieldTable(
    {
        "name": Fixed("TurboVLA"),
        "text": FieldTable(
            {
                "max_length": "max_text",
                "padding_length": Field("text_length", 0, (1,)),
                "padding_length_by_instruction": None,
                "sub_sentence_present": Fixed(True),
                "zero_padded_tokens": Fixed(False),
            },
            _ENCODER_IDLE,
        ),
        "vision": FieldTable(
            {
                "image_size": Field("vision.image_size", 256),
                "num_views": Field("views", 2, (1, 2)),
                "position_embedding": Fixed("view"),
            },
            {
                **_ENCODER_IDLE,
                "encode_views_separately": "how images are batched",
                "compute_precision": "the number format is an option here",
                "position_init_std position_scale_init dropout": _TRAINING,
            },
        ),
        "interaction": FieldTable(
            {
                **plain("hidden_dim=width nheads=heads num_layers=exchange dim_feedforward=mlp"),
                "enhancer_inner_dim": "inner",
                "padding_strategy": Fixed("key_padding_mask"),
                "residual_style": Fixed("normalized"),
            },
            {
                "text_dropout fusion_dropout fusion_droppath": _TRAINING,
                "attention_backend": "how fast the authors' code computes it",
                "compute_precision": "the number format is an option here",
            },
        ),
        "action": FieldTable(
            {
                "action_dim": Field("action_dim", 7),
                "state_dim": Field("state_dim", 8),
                "horizon": Field("horizon", 12),
                **plain("num_state_tokens=state_rows num_layers=layers mlp_hidden_dim=hidden"),
                "state_hidden_dim": "state_hidden",
            },
            {"dropout": _TRAINING},
        ),
        "shapes": None,
    },
    {
        **_RATE,
        "embedding_dump": "what the authors' code writes to disk on the way; nothing reads it",
    },
)
