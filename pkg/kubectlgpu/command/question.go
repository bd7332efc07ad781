package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/advise"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/audit"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/convert"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/plan"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

func explainCommand(kube *genericclioptions.ConfigFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain pod|claim NAME", Short: "Say why a pod or claim does not get its devices", Args: exactly(2),
		Long: "Says for each node how many devices were left after the class, each selector, taints, owners,\n" +
			"counters and constraints, which step is decisive (!), and the nearest change with which it fits.\n" +
			"The answer comes within about a second, also where a scheduler would search for minutes.",
		Example: examples("kubectl gpu explain pod train-0 -n team-a", "kubectl gpu explain claim big -o wide --from bundle/"),
	}
	from := newSource(kube, cmd)
	cmd.ValidArgsFunction = from.completing(2, podsAndClaims)
	search := searchFlag(cmd)
	return printed(cmd, func(cmd *cobra.Command, args []string) (output.Result, error) {
		s, err := from.load(cmd.Context())
		if err != nil {
			return nil, err
		}
		e := explain.New(s, explain.Options{Search: *search})
		switch kindOf(args[0]) {
		case kindPod:
			return e.Pod(cmd.Context(), from.namespace(), args[1])
		case kindClaim:
			return e.Claim(cmd.Context(), from.namespace(), args[1])
		}
		return nil, fmt.Errorf("%q is neither pod nor claim; use it as: kubectl gpu %s", args[0], cmd.Use)
	})
}

// The kinds that explain knows.
const (
	kindPod   = "pod"
	kindClaim = "claim"
)

// kindOf takes the names that kubectl takes; "" for other kinds.
func kindOf(word string) string {
	switch strings.TrimSuffix(strings.ToLower(word), "s") {
	case kindPod, "po":
		return kindPod
	case kindClaim, "resourceclaim":
		return kindClaim
	}
	return ""
}

func searchFlag(cmd *cobra.Command) *time.Duration {
	return cmd.Flags().Duration("search", explain.DefaultSearch, "how long the allocator may search for a combination of devices, all together")
}

// fileFlag adds -f and reads the objects in the files.
func fileFlag(cmd *cobra.Command, usage string) *[]string {
	files := cmd.Flags().StringSliceP("filename", "f", nil, usage+"; - is the standard input")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	return files
}

// text reads the files of -f.
func text(cmd *cobra.Command, files []string) ([]byte, error) {
	if len(files) == 0 {
		return nil, errors.New("which manifests? Name a file with --filename (-f), or - for the standard input")
	}
	return manifest.Read(cmd.InOrStdin(), files...)
}

func objects(cmd *cobra.Command, files []string) ([]runtime.Object, error) {
	data, err := text(cmd, files)
	if err != nil {
		return nil, err
	}
	return state.Decode(data)
}

// inNamespace puts objects that name no namespace into one, as apply does.
func inNamespace(all []runtime.Object, namespace string) {
	for _, o := range all {
		_, global := o.(*resourceapi.DeviceClass)
		if named, ok := o.(metav1.Object); ok && !global && named.GetNamespace() == "" {
			named.SetNamespace(namespace)
		}
	}
}

func planCommand(kube *genericclioptions.ConfigFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Say what pods and claims would get, and what would be left", Args: cobra.NoArgs,
		Long: "A dry run of the scheduler's choice of devices: for each pod, workload, claim and template of the\n" +
			"files, in their order, the devices that it would get or why it would not, the link cost of the\n" +
			"choice, and what would be left. CPUs, memory and priorities are not looked at.",
		Example: examples("kubectl gpu plan -f claim.yaml", "kubectl gpu plan -f claim.yaml --copies 5 --preset hgx-h100-8 --nodes 4"),
	}
	from, search := newSource(kube, cmd), searchFlag(cmd)
	files := fileFlag(cmd, "manifests of pods, workloads, claims and templates")
	copies := cmd.Flags().Int("copies", 1, "plan everything so many times")
	return printed(cmd, func(cmd *cobra.Command, _ []string) (output.Result, error) {
		if err := atMost("copies", *copies); err != nil {
			return nil, err
		}
		wanted, err := objects(cmd, *files)
		if err != nil {
			return nil, err
		}
		inNamespace(wanted, from.namespace())
		s, err := from.load(cmd.Context())
		if err != nil {
			return nil, err
		}
		return plan.Make(cmd.Context(), s, from.driver, wanted, *copies, explain.Options{Search: *search})
	})
}

func convertCommand() *cobra.Command {
	options := convert.Options{}
	cmd := &cobra.Command{
		Use: "convert -f FILE", Short: "Turn manifests for the device plugin into ones with claims", Args: cobra.NoArgs,
		Long: "Converts pods and workloads with nvidia.com/gpu and nvidia.com/mig-*, node selectors and affinity on\n" +
			"nvidia.com/gpu.product and .memory, ConfigMaps of the device plugin (time slicing, MPS) and of\n" +
			"mig-parted, and ResourceQuotas. Comments say what was done and what has no equal.",
		Example: examples("kubectl gpu convert -f deployment.yaml > claims.yaml", "kubectl gpu convert -f train.yaml --nvlink | kubectl apply -f -"),
	}
	files := fileFlag(cmd, "manifests")
	cmd.Flags().StringVar(&options.Driver, "driver-name", defaultDriver, "name of the DRA driver")
	cmd.Flags().BoolVar(&options.NVLink, "nvlink", false, "several GPUs of a pod must share one NVLink domain")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		data, err := text(cmd, *files)
		if err != nil {
			return err
		}
		documents, err := convert.Convert(data, options)
		if err != nil {
			return err
		}
		rendered, err := convert.Render(documents)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(rendered)
		return err
	}
	return cmd
}

func adviseCommand() *cobra.Command {
	var need advise.Need
	cmd := &cobra.Command{
		Use: "advise --weights-gb N", Short: "Weigh whole GPUs, MIG, MPS and time slicing for tenants of a model", Args: cobra.NoArgs,
		Long: "Says what fits, how many tenants share a GPU, the lower bound of a decode step of batch 1\n" +
			"(weights / (bandwidth × share)) and what keeps tenants apart, from published figures of boards.",
		Example: examples("kubectl gpu advise --weights-gb 14 --tenants 5 --gpu H100-80", "kubectl gpu advise --weights-gb 3 --kv-gb 2 --tenants 12 --gpu A100-80 --isolation=false"),
	}
	fs := cmd.Flags()
	fs.Float64Var(&need.WeightsGB, "weights-gb", 0, "weights of the model in GB (10^9 bytes)")
	fs.Float64Var(&need.KVCacheGB, "kv-gb", 0, "KV cache of a tenant in GB")
	fs.Float64Var(&need.OverheadGB, "overhead-gb", 1, "what CUDA and the framework take for each tenant, in GB")
	fs.IntVar(&need.Tenants, "tenants", 1, "how many tenants")
	fs.StringVar(&need.GPU, "gpu", "H100-80", "board: "+strings.Join(advise.Names(), ", "))
	fs.BoolVar(&need.Isolation, "isolation", true, "hardware must keep tenants apart; --isolation=false takes MPS and time slicing, too")
	fs.BoolVar(&need.Steady, "steady", false, "latency must not depend on the other tenants")
	fs.Float64Var(&need.MaxStepMS, "max-step-ms", 0, "longest decode step in ms; 0 for any")
	_ = cmd.MarkFlagRequired("weights-gb")
	_ = cmd.RegisterFlagCompletionFunc("gpu", cobra.FixedCompletions(advise.Names(), cobra.ShellCompDirectiveNoFileComp))
	return printed(cmd, func(*cobra.Command, []string) (output.Result, error) { return advise.Make(need) })
}

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit -f FILE", Short: "Check pods that use GPUs for what slows or breaks them", Args: cobra.NoArgs,
		Long: "Checks pods and workloads: QoS and whole CPUs, /dev/shm, thread counts, probes, grace period,\n" +
			"tolerations, NVLink for several GPUs, pinned images, a place for the weights. -o wide lists also\n" +
			"what is well. With --fail-on the exit status tells.",
		Example: examples("kubectl gpu audit -f pod.yaml", "kubectl gpu audit -f deployment.yaml --fail-on warning"),
	}
	files := fileFlag(cmd, "manifests of pods, workloads, claims and templates")
	failOn := failFlag(cmd)
	return reported(cmd, failOn, func(cmd *cobra.Command) (finding.Report, error) {
		wanted, err := objects(cmd, *files)
		if err != nil {
			return finding.Report{}, err
		}
		return audit.Run(wanted)
	})
}

// errFindings ends a command whose report has findings that the user wants to fail on.
var errFindings = errors.New("there are findings")

const never = "never"

// failValues are those of --fail-on.
func failValues() []string { return []string{never, string(finding.Warning), string(finding.Error)} }

func failFlag(cmd *cobra.Command) *string {
	values := failValues()
	flag := cmd.Flags().String("fail-on", never, "fail where there are findings of this severity or worse: "+strings.Join(values, ", "))
	_ = cmd.RegisterFlagCompletionFunc("fail-on", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	return flag
}

// reported makes a command that prints a report and fails as asked for.
func reported(cmd *cobra.Command, failOn *string, run func(*cobra.Command) (finding.Report, error)) *cobra.Command {
	flags := output.NewFlags()
	flags.AddTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := choice("fail-on", *failOn, failValues()...); err != nil {
			return err
		}
		report, err := run(cmd)
		if err != nil {
			return err
		}
		if err := flags.Print(report, cmd.OutOrStdout()); err != nil {
			return err
		}
		bad := report.Count(finding.Error)
		if *failOn == string(finding.Warning) {
			bad += report.Count(finding.Warning)
		}
		if *failOn != never && bad > 0 {
			return errFindings
		}
		return nil
	}
	return cmd
}
