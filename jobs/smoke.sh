#!/usr/bin/env bash
# Every grid of the papers, small: every row, table, figure and report, on one machine without a GPU, in minutes per grid (prge_table5 and
# prge_fig4, in fp16, take longer). The numbers mean nothing, and every table says so. DATA=FOLDER jobs/smoke.sh: FOLDER has the tasks and
# text/c4_sample.jsonl (JSON lines with a `text`). MODEL=FOLDER names a small Llama-like model in Hugging Face format instead of the demo model.
# pezo_table4 is without TREC, whose label words are several tokens of the demo tokenizer.
export HF_HUB_OFFLINE=1
: "${DATA:?names the folder of the data}"
if [[ -n ${MODEL:-} ]]; then model=(model=local "model.path=$MODEL"); else model=(model=demo); fi
RANDOM_CAUSAL="model=random_llama"
RANDOM_MASKED="model=random_roberta"
FEW="split.train=16 split.dev=8 split.test=8 train.batch=4"
LOOK="gradients.samples=8 gradients.text_samples=8 gradients.length=64"
zo() { python -m zo_sweeps "$@"; }
trap 'exit 130' INT; status=0
while IFS='|' read -r grid given; do
  if [[ $given == MODEL* ]]; then chosen=("${model[@]}"); else chosen=(); fi
  read -ra overrides <<<"${given#MODEL}"
  zo "+grid=$grid" grid.relabel=true scale=smoke executor=inline "data.dir=$DATA" "state_dir=smoke/$grid" "${chosen[@]}" "${overrides[@]}" &&
    zo figure "+grid=$grid" "state_dir=smoke/$grid" && zo report "+grid=$grid" "state_dir=smoke/$grid" || status=$?
done <<GRIDS
bytebots_frameworks|$RANDOM_CAUSAL
bytebots_table1|MODEL
llama2_superglue|MODEL $FEW update.lr=1e-4 estimator.q=2 task=sst2,copa,squad
pezo_fig3_pool|$RANDOM_MASKED $FEW ~grid.blocks.opt_sst2_k16 grid.seeds=[13] update.lr=1e-6
pezo_fig3_rngs|$RANDOM_MASKED $FEW ~grid.blocks.opt_sst2_k16 grid.seeds=[13] update.lr=1e-6
pezo_fig4|$RANDOM_MASKED $FEW ~grid.blocks.opt_1b3 ~grid.blocks.opt_2b7 grid.seeds=[13]
pezo_table2|$RANDOM_CAUSAL
pezo_table2_flops|$RANDOM_CAUSAL
pezo_table3|$RANDOM_MASKED $FEW grid.seeds=[13,21] update.lr=1e-6
pezo_table4|$RANDOM_MASKED $FEW grid.seeds=[13] update.lr=1e-6 ~grid.columns.TREC
pezo_table5|MODEL $FEW grid.seeds=[13] update.lr=1e-6
pezo_table6|method.placements=1
prge_fig3|$RANDOM_CAUSAL
prge_fig4|$RANDOM_CAUSAL
prge_fig5|$RANDOM_CAUSAL
prge_table1|MODEL $FEW update.lr=1e-4 task=sst2,mrpc
prge_table3|$RANDOM_CAUSAL device=cpu
prge_table4|$RANDOM_CAUSAL device=executorch
prge_table5|$RANDOM_CAUSAL
prge_table6|MODEL $FEW update.lr=1e-4
prge_table9|$RANDOM_CAUSAL
sensitive_8gib|$RANDOM_CAUSAL
sensitive_adam|MODEL $FEW grid.seeds=[0] update.lr=1e-4 task=rte,copa
sensitive_fig1|$RANDOM_CAUSAL
sensitive_fig1_inference|$RANDOM_CAUSAL
sensitive_fig5_copa|MODEL $FEW grid.seeds=[0]
sensitive_fig5_rte|MODEL $FEW grid.seeds=[0]
sensitive_fig5_wic|MODEL $FEW grid.seeds=[0]
sensitive_fig6|MODEL $FEW grid.seeds=[0,1] task=rte,copa
sensitive_gradients|MODEL $LOOK task=rte,copa
sensitive_table1a|MODEL $FEW task=rte,cb,wsc grid.seeds=[0]
sensitive_table1b|MODEL $FEW task=rte grid.seeds=[0,1]
sensitive_table1c|MODEL $FEW task=copa grid.seeds=[0,1]
GRIDS
exit "$status"
