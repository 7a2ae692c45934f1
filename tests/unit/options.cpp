// The command line: what each option does, and what is refused with which words.
#include "src/options.hpp"

#include <gtest/gtest.h>

#include <random>

#include "src/errors.hpp"
#include "tests/unit/refusals.hpp"

namespace shardbench {
namespace {

using test::names_all;

using Arguments = std::vector<std::string>;

const std::set<OptionFamily> ddp_families = {OptionFamily::buckets};
const std::set<OptionFamily> zero3_families = {OptionFamily::gather_groups,
                                               OptionFamily::ordered_collectives};

Options ddp(const Arguments& arguments) { return parse_options("ddp", ddp_families, arguments); }
Options zero3(const Arguments& arguments) { return parse_options("zero3", zero3_families, arguments); }
Options simulated(const Arguments& arguments) {
  return parse_options("zero3", zero3_families, arguments, Build::simulated);
}

Arguments words(const std::string& text) {
  Arguments result;
  std::string word;
  for (const char c : text + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      result.push_back(std::exchange(word, {}));
    }
  }
  return result;
}

/// The message with which a zero3 (or ddp) command line is refused; empty when it is not.
std::string refusal(const Arguments& arguments, Options (*parse)(const Arguments&) = zero3) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}
std::string refusal(const std::string& text, Options (*parse)(const Arguments&) = zero3) {
  return refusal(words(text), parse);
}

TEST(Defaults, AreTheContracts) {
  const Options o = zero3({});
  EXPECT_EQ(o.scenario, "zero3");
  EXPECT_EQ(o.model, "tiny");
  EXPECT_EQ(o.dims.hidden, 64);
  EXPECT_EQ(o.micro_batch, 1);
  EXPECT_EQ(o.grad_accum, 1);
  EXPECT_FALSE(o.global_batch);
  EXPECT_EQ(o.steps, 10);
  EXPECT_EQ(o.warmup, 2);
  EXPECT_EQ(o.window, 10);
  EXPECT_EQ(o.compute, Compute::real);
  EXPECT_EQ(o.param_dtype, DType::bf16);
  EXPECT_EQ(o.reduce_dtype, DType::fp32);
  EXPECT_EQ(o.fp32_grad_accum, Fp32Accumulation::off);
  EXPECT_EQ(o.clip, 0.0);
  EXPECT_EQ(o.layout, Layout::per_parameter);
  EXPECT_EQ(o.wrap, Wrap::blocks);
  EXPECT_EQ(o.reshard, ReshardAfterForward::all);
  EXPECT_EQ(o.prefetch.forward, 1);
  EXPECT_EQ(o.prefetch.backward, 1);
  EXPECT_EQ(o.communicators, 1);
  EXPECT_EQ(o.rs_wait, ReduceScatterWait::next);
  EXPECT_EQ(o.bucket_mb, 25);
  EXPECT_EQ(o.algorithm, Algorithm::automatic);
  EXPECT_EQ(o.progress, Progress::poll);
  EXPECT_EQ(o.payload, Payload::real);
  EXPECT_EQ(o.seed, 1U);
  EXPECT_EQ(o.check, Check::off);
  EXPECT_EQ(o.trace, TraceLevel::events);
  EXPECT_EQ(o.existing_file, ExistingFile::refuse);
  EXPECT_FALSE(o.ranks);
  EXPECT_FALSE(o.plan);
}

TEST(EachOption, TakesEffect) {
  const Options o = zero3(words(
      "--model 25m --micro-batch 3 --grad-accum 4 -n 7 -w 0 --window 5 --param-dtype fp32 --reduce-dtype "
      "bf16 "
      "--clip 1.5 --layout flat --wrap root --reshard-after-forward blocks --prefetch 2,1 --communicators 2 "
      "--rs-wait end --algorithm doubling --progress thread --threads 3 --seed 65535 -c --trace steps -o "
      "a.h5 "
      "--overwrite --ranks 6 --recompute none --backend mpi"));
  EXPECT_EQ(o.dims.hidden, 512);
  EXPECT_EQ(o.micro_batch, 3);
  EXPECT_EQ(o.grad_accum, 4);
  EXPECT_EQ(o.steps, 7);
  EXPECT_EQ(o.warmup, 0);
  EXPECT_EQ(o.window, 5);
  EXPECT_EQ(o.param_dtype, DType::fp32);
  EXPECT_EQ(o.reduce_dtype, DType::bf16);
  EXPECT_EQ(o.clip, 1.5);
  EXPECT_EQ(o.layout, Layout::flat);
  EXPECT_EQ(o.wrap, Wrap::root);
  EXPECT_EQ(o.reshard, ReshardAfterForward::blocks);
  EXPECT_EQ(o.prefetch.forward, 2);
  EXPECT_EQ(o.prefetch.backward, 1);
  EXPECT_EQ(o.communicators, 2);
  EXPECT_EQ(o.rs_wait, ReduceScatterWait::end);
  EXPECT_EQ(o.algorithm, Algorithm::doubling);
  EXPECT_EQ(o.progress, Progress::thread);
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.seed, 65'535U);
  EXPECT_EQ(o.check, Check::on);
  EXPECT_EQ(o.trace, TraceLevel::steps);
  EXPECT_EQ(o.output, "a.h5");
  EXPECT_EQ(o.existing_file, ExistingFile::overwrite);
  EXPECT_EQ(o.ranks, 6);
}

TEST(EachOption, ModelDimensionsOverrideThePreset) {
  const Options o = ddp(words(
      "--layers 3 --hidden 60 --heads 6 --kv-heads 3 --ffn 100 --vocab 101 --seq 17 --tied --bucket-mb 1 "
      "--fp32-grad-accum"));
  EXPECT_EQ(o.dims.layers, 3);
  EXPECT_EQ(o.dims.hidden, 60);
  EXPECT_EQ(o.dims.heads, 6);
  EXPECT_EQ(o.dims.kv_heads, 3);
  EXPECT_EQ(o.dims.ffn, 100);
  EXPECT_EQ(o.dims.vocab, 101);
  EXPECT_EQ(o.dims.seq, 17);
  EXPECT_EQ(o.dims.head, Head::tied);
  EXPECT_EQ(o.bucket_mb, 1);
  EXPECT_EQ(o.fp32_grad_accum, Fp32Accumulation::on);
  EXPECT_EQ(ddp(words("--model 124m --untied")).dims.head, Head::own);
}

TEST(EachOption, ImitatedComputeTakesEffect) {
  const Options flops = zero3(words("--compute timed --flops 1e12 --payload phantom"));
  EXPECT_EQ(flops.compute, Compute::timed);
  EXPECT_EQ(flops.flops, 1e12);
  EXPECT_EQ(flops.payload, Payload::phantom);
  EXPECT_EQ(zero3(words("--compute timed --calibration c.json")).calibration_file, "c.json");
}

TEST(EachOption, SlowDownsTakeEffect) {
  const auto jitter = [](const std::string& text) {
    const Jitter j = zero3(words("--compute timed --flops 1e12 --jitter " + text)).jitter;
    return std::pair(j.rank, j.step);
  };
  EXPECT_EQ(jitter("rank=0.02"), std::pair(0.02, 0.0));
  EXPECT_EQ(jitter("step=10"), std::pair(0.0, 10.0));
  EXPECT_EQ(jitter("rank=0.02,step=1e-3"), std::pair(0.02, 1e-3));
  EXPECT_EQ(jitter("step=0,rank=1"), std::pair(1.0, 0.0));
  EXPECT_EQ(zero3(words("--compute timed --flops 1e12 --contention 0.25")).contention, 0.25);
}

TEST(Jitter, ThatIsNotSigmasByNameIsRefused) {
  for (const char* bad : {"",         "0.1",
                          "rank",     "rank=",
                          "rank=x",   "rank=-1",
                          "rank=11",  "rank=nan",
                          "rank=inf", "rank=0.1,",
                          ",",        "rank=0.1;step=0.1",
                          "time=1",   "rank=1,rank=2",
                          "=1",       "rank=0,1",
                          "rank= 1",  "step=1e999",
                          "rank==1",  "rank=.5",
                          "RANK=1",   "rank=1,step=1,rank=1"})
    EXPECT_TRUE(
        names_all(refusal(Arguments{"--compute", "timed", "--flops", "1e9", "--jitter", bad}), {"--jitter"}))
        << bad;
  for (const char* bad : {"-0.1", "11", "nan", "inf", "x"})
    EXPECT_TRUE(
        names_all(refusal(std::string("--compute timed --flops 1e9 --contention ") + bad), {"--contention"}))
        << bad;
}

TEST(Simulated, DefaultsAreOthers) {
  const Options o = simulated({});
  EXPECT_EQ(o.compute, Compute::timed);
  EXPECT_EQ(o.payload, Payload::phantom);
  EXPECT_EQ(o.progress, Progress::stream);
  EXPECT_EQ(o.algorithm, Algorithm::nccl);
  EXPECT_EQ(simulated(words("--payload real")).payload, Payload::real);
  const Options real = simulated(words("--compute real -c --algorithm ring --progress poll"));
  EXPECT_EQ(real.payload, Payload::real) << "what computes needs values";
  EXPECT_EQ(real.algorithm, Algorithm::ring);
  EXPECT_EQ(real.progress, Progress::poll);
}

TEST(Simulated, DefaultsAreShownByHelp) {
  const auto help = [](Build build) {
    const ParsedOptions parsed = try_parse_options("zero3", zero3_families, {"--help"}, build);
    return parsed.help;
  };
  for (const char* shown : {"--compute CHOICE=timed", "--payload CHOICE=phantom", "--progress CHOICE=stream",
                            "--algorithm CHOICE=nccl"}) {
    EXPECT_NE(help(Build::simulated).find(shown), std::string::npos) << shown;
    EXPECT_EQ(help(Build::real).find(shown), std::string::npos) << shown;
  }
}

TEST(Simulated, RefusesWhatDoesNotGoTogether) {
  const auto refused = [](const std::string& text) { return refusal(words(text), simulated); };
  EXPECT_TRUE(names_all(refused("--check"), {"--check", "--compute real"}));
  EXPECT_TRUE(names_all(refused("--compute real --payload phantom"), {"--payload phantom"}));
  EXPECT_TRUE(names_all(refused("--compute real --flops 1e12"), {"--flops", "timed"}));
  EXPECT_TRUE(names_all(refused("--flops 1e12 --calibration c.json"), {"--flops", "--calibration"}));
  EXPECT_EQ(refused("--flops 1e12"), "");
  EXPECT_EQ(refused("--jitter rank=0.1 --contention 0.1"), "");
}

TEST(Simulated, RealValuesHaveTheirLimits) {
  const auto refused = [](const std::string& text, int ranks) -> std::string {
    try {
      check_simulated_size(simulated(words(text)), ranks);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused("", 4096), "");
  EXPECT_EQ(refused("--payload real", 256), "");
  EXPECT_TRUE(names_all(refused("--payload real", 257), {"--payload real", "256", "257", "phantom"}));
  EXPECT_EQ(refused("--compute real", 64), "");
  EXPECT_TRUE(names_all(refused("--compute real", 65), {"--compute real", "64", "65", "timed"}));
}

TEST(EachOption, PlanAndVersionTakeEffect) {
  const Options o = zero3(words("--plan --ranks 8 --rank 7"));
  EXPECT_TRUE(o.plan);
  EXPECT_EQ(o.ranks, 8);
  EXPECT_EQ(o.plan_rank, 7);
  EXPECT_TRUE(zero3(words("--version")).show_version);
}

TEST(EachOption, ChoicesAreAllAccepted) {
  for (const char* choice : {"--algorithm auto",
                             "--algorithm direct",
                             "--algorithm ring",
                             "--algorithm doubling",
                             "--algorithm native",
                             "--progress none",
                             "--progress poll",
                             "--progress thread",
                             "--algorithm nccl --progress stream",
                             "--trace none",
                             "--trace steps",
                             "--trace events",
                             "--reshard-after-forward all",
                             "--reshard-after-forward none",
                             "--rs-wait next",
                             "--wrap blocks",
                             "--layout per-parameter",
                             "--compute real",
                             "--payload real",
                             "--param-dtype bf16",
                             "--reduce-dtype fp32"})
    EXPECT_EQ(refusal(choice), "") << choice;
}

TEST(Help, IsThrownWithEveryOption) {
  for (const char* flag : {"-h", "--help"}) {
    try {
      zero3({flag});
      FAIL() << "no help";
    } catch (const HelpRequested& help) {
      for (const char* option : {"--prefetch", "--steps", "--model", "--output", "--communicators"})
        EXPECT_NE(help.text.find(option), std::string::npos) << option;
      EXPECT_EQ(help.text.find("--bucket-mb"), std::string::npos) << "not an option of zero3";
    }
  }
}

TEST(Unknown, OptionsAreAnsweredWithTheNearestName) {
  EXPECT_TRUE(names_all(refusal("--prefech 2"), {"--prefech", "--prefetch"}));
  EXPECT_TRUE(names_all(refusal("--prefech=2"), {"--prefech", "--prefetch"}));
  EXPECT_TRUE(names_all(refusal("--step 3"), {"--step", "--steps"}));
  EXPECT_TRUE(names_all(refusal("--micro_batch 3"), {"--micro_batch", "--micro-batch"}));
  EXPECT_TRUE(names_all(refusal("--bucket-md 3", ddp), {"--bucket-md", "--bucket-mb"}));
  EXPECT_TRUE(names_all(refusal("-n 3 --overwrit"), {"--overwrite"}));
}

TEST(Unknown, OptionsOfOtherScenariosAreNamedAsSuch) {
  EXPECT_TRUE(names_all(refusal("--prefetch 2", ddp), {"--prefetch", "ddp", "zero3"}));
  EXPECT_TRUE(names_all(refusal("--layout=flat", ddp), {"--layout", "ddp", "zero3"}));
  EXPECT_TRUE(names_all(refusal("--bucket-mb 2"), {"--bucket-mb", "zero3", "ddp"}));
  EXPECT_TRUE(names_all(refusal("--tp 2"), {"--tp", "mesh2d"}));
}

TEST(Unknown, StrayWordsAreRefused) {
  EXPECT_TRUE(names_all(refusal("steps 3"), {"steps"}));
  EXPECT_TRUE(names_all(refusal("--check yes"), {"yes"}));
  EXPECT_NE(refusal(Arguments{""}), "");
  EXPECT_NE(refusal(Arguments{"-"}), "");
  EXPECT_NE(refusal("-x"), "");
  EXPECT_NE(refusal("-- --steps"), "");
}

TEST(Values, OutsideTheirRangeAreRefused) {
  const std::string beyond_64_bits = "1180591620717411303424";  // 2^70
  for (const std::string option : {"--micro-batch", "--grad-accum", "--global-batch", "--steps", "--warmup",
                                   "--window", "--seed", "--threads", "--ranks", "--layers", "--hidden",
                                   "--heads", "--kv-heads", "--ffn", "--vocab", "--seq", "--communicators"})
    for (const std::string& value : Arguments{beyond_64_bits, "-1", "99999999999", "two", "1.5", "3x", "nan"})
      EXPECT_TRUE(names_all(refusal(option + " " + value), {option})) << option << ' ' << value;
}

TEST(Values, InExponentNotationAreNotIntegers) {
  for (const std::string option : {"--steps", "--seq", "--global-batch", "--vocab"})
    EXPECT_TRUE(names_all(refusal(option + " 1e9"), {option})) << option;
}

TEST(Values, ThatAreNotNumbersAreNotNumbers) {
  for (const char* value : {"nan", "-nan", "inf", "-1", "1e31", "one"}) {
    EXPECT_TRUE(names_all(refusal(std::string("--clip ") + value), {"--clip"})) << value;
    EXPECT_TRUE(names_all(refusal(std::string("--compute timed --flops ") + value), {"--flops"})) << value;
  }
}

TEST(Values, OutsideTheirChoicesAreRefusedWithTheChoices) {
  EXPECT_TRUE(names_all(refusal("--algorithm rings"), {"--algorithm", "rings", "ring", "doubling"}));
  EXPECT_TRUE(names_all(refusal("--param-dtype fp16"), {"--param-dtype", "fp16", "bf16", "fp32"}));
  EXPECT_TRUE(names_all(refusal("--model 13b"), {"--model", "13b", "tiny", "405b"}));
  EXPECT_TRUE(names_all(refusal("--recompute half"), {"--recompute", "none|full"}));
  EXPECT_TRUE(names_all(refusal("--backend nccl"), {"--backend", "nccl", "mpi"}));
}

TEST(Backend, NcclIsTakenWhereItIsBuiltIn) {
  const auto parse = [](const std::vector<std::string>& arguments) {
    return parse_options("zero3", zero3_families, arguments, Build::accelerated);
  };
  EXPECT_EQ(parse({}).backend, BackendChoice::mpi);
  EXPECT_EQ(parse({"--backend", "nccl"}).backend, BackendChoice::nccl);
  EXPECT_NE(options_json(parse({"--backend", "nccl"})).find(R"("backend":"nccl")"), std::string::npos);
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{"--backend", "nccl", "--algorithm", "ring"},
        {"--backend", "nccl", "--compute", "timed", "--flops", "1e9"},
        {"--backend", "cuda"}})
    EXPECT_THROW(static_cast<void>(parse(refused)), UsageError) << refused.back();
}

TEST(Values, ThatAreMissingOrEmptyAreRefused) {
  EXPECT_TRUE(names_all(refusal("--steps"), {"--steps"}));
  EXPECT_TRUE(names_all(refusal("--output"), {"--output"}));
  for (const std::string option :
       {"--steps", "--prefetch", "--model", "--param-dtype", "--flops", "--output"}) {
    EXPECT_TRUE(names_all(refusal(Arguments{option, ""}), {option})) << option;
    EXPECT_TRUE(names_all(refusal(Arguments{option + "="}), {option})) << option;
  }
}

TEST(Values, GivenTwiceAreRefused) {
  EXPECT_TRUE(names_all(refusal("--steps 3 --steps 4"), {"--steps"}));
  EXPECT_TRUE(names_all(refusal("-n 3 --steps 4"), {"--steps"}));
  EXPECT_TRUE(names_all(refusal("--prefetch 1 --prefetch 2"), {"--prefetch"}));
  EXPECT_TRUE(names_all(refusal("--model tiny --model 7b"), {"--model"}));
  EXPECT_TRUE(names_all(refusal("--param-dtype fp32 --param-dtype bf16"), {"--param-dtype"}));
  EXPECT_TRUE(names_all(refusal("--layers 3 --layers 4"), {"--layers"}));
}

TEST(Prefetch, TakesOneNumberOrTwo) {
  const auto prefetch = [](const std::string& value) {
    const Prefetch p = zero3({"--prefetch", value}).prefetch;
    return std::pair(p.forward, p.backward);
  };
  EXPECT_EQ(prefetch("0"), std::pair(0, 0));
  EXPECT_EQ(prefetch("3"), std::pair(3, 3));
  EXPECT_EQ(prefetch("2,1"), std::pair(2, 1));
  EXPECT_EQ(prefetch("0,5"), std::pair(0, 5));
  for (const char* bad :
       {",", "1,", ",1", "1,2,3", "a", "1,b", "-1", "+1", "1.5", "1 2", "99999999999", "1;2", "0x1"})
    EXPECT_TRUE(names_all(refusal(Arguments{"--prefetch", bad}), {"--prefetch"})) << bad;
}

TEST(Contradictions, AreRefusedNamingBothSides) {
  EXPECT_TRUE(names_all(refusal("--tied --untied"), {"--tied", "--untied"}));
  EXPECT_TRUE(names_all(refusal("--tied --wrap blocks"), {"--wrap", "root"}));
  EXPECT_TRUE(names_all(refusal("--grad-accum 2 --global-batch 8"), {"--grad-accum", "--global-batch"}));
  EXPECT_TRUE(
      names_all(refusal("--fp32-grad-accum --param-dtype fp32"), {"--fp32-grad-accum", "--param-dtype"}));
  EXPECT_TRUE(names_all(refusal("--compute timed"), {"--flops", "--calibration"}));
  EXPECT_TRUE(
      names_all(refusal("--compute timed --flops 1e9 --calibration c"), {"--flops", "--calibration"}));
  EXPECT_TRUE(names_all(refusal("--flops 1e9"), {"--flops", "--compute timed"}));
  EXPECT_TRUE(names_all(refusal("--calibration c"), {"--calibration", "--compute timed"}));
  EXPECT_TRUE(names_all(refusal("--payload phantom"), {"--payload", "--compute timed"}));
  EXPECT_TRUE(names_all(refusal("--check --compute timed --flops 1e9"), {"--check", "timed"}));
  EXPECT_TRUE(names_all(refusal("--jitter rank=0.1"), {"--jitter", "--compute timed"}));
  EXPECT_TRUE(names_all(refusal("--contention 0.1"), {"--contention", "--compute timed"}));
  EXPECT_TRUE(names_all(refusal("--plan --rank 1"), {"--rank", "--ranks"}));
  EXPECT_TRUE(names_all(refusal("--plan --ranks 4 --rank 4"), {"--rank 4", "--ranks 4"}));
  EXPECT_TRUE(names_all(refusal("--rank 0"), {"--rank", "--plan"}));
  EXPECT_TRUE(names_all(refusal("--steps 32767 --warmup 2"), {"--steps", "--warmup"}));
  EXPECT_EQ(refusal("--steps 32766 --warmup 2"), "");
}

TEST(Contradictions, InDimensionsAreRefused) {
  EXPECT_TRUE(names_all(refusal("--hidden 65"), {"--hidden 65", "--heads 4"}));
  EXPECT_TRUE(names_all(refusal("--kv-heads 3"), {"--kv-heads 3", "--heads 4"}));
  EXPECT_TRUE(names_all(refusal("--seq 65536"), {"--seq"}));
  EXPECT_TRUE(names_all(refusal("--layers 0"), {"--layers"}));
}

TEST(Tied, WeightsForceTheRootWrap) {
  EXPECT_EQ(zero3(words("--tied")).wrap, Wrap::root);
  EXPECT_EQ(zero3(words("--model 124m")).wrap, Wrap::root);
  EXPECT_EQ(zero3(words("--model 124m --untied")).wrap, Wrap::blocks);
  EXPECT_EQ(zero3(words("--tied --wrap root")).wrap, Wrap::root);
  EXPECT_NE(refusal("--model 1b --wrap blocks"), "");
}

TEST(GlobalBatch, DerivesTheAccumulation) {
  Options o = zero3(words("--global-batch 48 --micro-batch 2"));
  resolve_batch(o, 4);
  EXPECT_EQ(o.grad_accum, 6);
  Options given = zero3(words("--grad-accum 5 --micro-batch 2"));
  resolve_batch(given, 4);
  EXPECT_EQ(given.grad_accum, 5);
}

TEST(GlobalBatch, ThatDoesNotFitIsRefused) {
  const auto refused = [](const std::string& text, int dp) -> std::string {
    Options o = zero3(words(text));
    try {
      resolve_batch(o, dp);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(names_all(refused("--global-batch 6 --micro-batch 2", 2),
                        {"--global-batch 6", "--micro-batch 2", "4"}));
  EXPECT_TRUE(names_all(refused("--global-batch 2", 4), {"--global-batch 2", "4"}));
  EXPECT_TRUE(names_all(refused("--micro-batch 8192", 8), {"65536", "--micro-batch"}));
  EXPECT_TRUE(names_all(refused("--micro-batch 65535 --grad-accum 65535", 1 << 24), {"--micro-batch"}));
  EXPECT_EQ(refused("--micro-batch 65535", 1), "");
}

TEST(Json, HoldsTheEffectiveConfiguration) {
  const std::string json =
      options_json(zero3(words("--prefetch 2,1 --tied --global-batch 8 --reduce-dtype bf16")));
  EXPECT_NE(options_json(zero3(words("--compute timed --flops 1e9 --jitter step=0.5 --contention 0.25")))
                .find(R"("jitter":{"rank":0.0,"step":0.5},"contention":0.25)"),
            std::string::npos);
  for (const char* part : {R"("scenario":"zero3")", R"("prefetch":"2,1")", R"("wrap":"root")",
                           R"("ranks-per-node":null)", R"("global-batch":8)", R"("reduce-dtype":"bf16")",
                           R"("flops":null)", R"("jitter":null)", R"("contention":0.0)"})
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
}

TEST(Json, CanBeWrittenForAnyFileName) {
  // File names are bytes, not necessarily UTF-8.
  const Options o = zero3({"--compute", "timed", "--calibration", "caf\xE9.json"});
  EXPECT_NO_THROW(static_cast<void>(options_json(o)));
}

/// A random command line out of option names, plausible values and bytes that mean nothing.
Arguments garbage(std::mt19937& generator) {
  Arguments pieces = words(
      "--model --layers --hidden --heads --kv-heads --ffn --vocab --seq --tied --untied --micro-batch "
      "--grad-accum --global-batch -n --steps -w --warmup --window --compute --flops --calibration --jitter "
      "--contention rank=0.1,step=0.2 "
      "--param-dtype "
      "--reduce-dtype --fp32-grad-accum --clip --layout --wrap --reshard-after-forward --prefetch "
      "--communicators --rs-wait --bucket-mb --algorithm --progress --payload --backend --ranks "
      "--ranks-per-node --threads "
      "--seed "
      "-c --check --trace --plan --rank -o --output --overwrite --version --help -h --recompute -- - --- = 0 "
      "1 2 "
      "8 64 -1 1e9 1180591620717411303424 9223372036854775807 -9223372036854775808 0x7f 010 nan inf tiny "
      "405b "
      "fp32 bf16 timed phantom root flat 1,2 , --steps=3 --steps= --tied=maybe -n5 -cw3 {} %s%n [1,2] \" '");
  pieces.insert(pieces.end(), {"", " "});
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(generator);
  };
  Arguments arguments(below(7));
  for (std::string& argument : arguments) {
    argument = pieces[below(pieces.size())];
    if (below(8) == 0)  // any byte but those that end an argument or a line
      for (std::size_t i = below(6); i > 0; --i) {
        const auto byte = static_cast<char>(1 + below(255));
        argument += byte == '\n' || byte == '\r' ? '?' : byte;
      }
  }
  return arguments;
}

TEST(Property, AnyCommandLineIsRefusedInALineOrValid) {
  std::mt19937 generator(20'260'101);
  int valid = 0;
  for (int round = 0; round < 1000; ++round) {
    const Arguments arguments = garbage(generator);
    std::string line;
    for (const std::string& argument : arguments) line += "'" + argument + "' ";
    SCOPED_TRACE(line);
    try {
      Options o = round % 2 == 0 ? zero3(arguments) : ddp(arguments);
      EXPECT_NO_THROW(validate(o.dims));
      EXPECT_GE(o.steps, 1);
      EXPECT_GE(o.warmup, 0);
      EXPECT_LE(o.steps + o.warmup, 1 << 15);
      EXPECT_GE(o.micro_batch, 1);
      EXPECT_LT(o.seed, 1U << 16);
      EXPECT_TRUE(o.clip >= 0.0 && o.clip <= 1e30) << o.clip;
      EXPECT_GE(o.prefetch.forward, 0);
      EXPECT_GE(o.threads, 0);
      static_cast<void>(options_json(o));
      ++valid;
    } catch (const UsageError& error) {
      EXPECT_TRUE(names_all(error.what(), {}));
      EXPECT_GT(std::string(error.what()).size(), 10U);
    } catch (const HelpRequested& help) {
      EXPECT_FALSE(help.text.empty());
    }
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(valid, 30) << "the property must not hold merely because everything is refused";
}

}  // namespace
}  // namespace shardbench
