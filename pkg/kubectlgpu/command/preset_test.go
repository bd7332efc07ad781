package command_test

import (
	"strings"
	"testing"
)

const layouts = "version: v1\nmig-configs:\n  small: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]\n  whole: [{devices: all, mig-enabled: false}]\n"

// How the nodes of a preset are set up: by values of the chart, and by flags, which go before them.
func TestValues(t *testing.T) {
	values := func(text string) string { return " --values " + save(t, "values.yaml", text) }
	file := save(t, "layouts.yaml", layouts)
	for name, tc := range map[string]struct{ args, want string }{
		"defaults":        {"get --preset hgx-h100-8 -o jsonpath={.totals.gpus}" + values("{}"), "8"},
		"excluded":        {"get --preset mixed -o jsonpath={.totals.gpus}" + values("gpus: {exclude: [{products: ['*T4*']}]}"), "4"},
		"for some nodes":  {"get --preset t4-4 --nodes 2 -o jsonpath={.totals.gpus}" + values("gpus: {exclude: [{nodes: [node-1], products: ['*']}]}"), "4"},
		"driver name":     {"slice-template --preset t4-4" + values("driverName: gpu.example.com"), "driver: gpu.example.com"},
		"driver by flag":  {"slice-template --preset t4-4 --driver-name gpu.other.com" + values("driverName: gpu.example.com"), "driver: gpu.other.com"},
		"classes of it":   {"plan --search 10m --preset t4-4 --nodes 1 -o jsonpath={.items[0].verdict} -f " + save(t, "c.yaml", claimOf("gpu.nvidia.com")) + values("driverName: gpu.example.com"), "fits"},
		"partitions":      {"get --preset hgx-h100-8 -o jsonpath={.totals.largestFreePartition.profile}" + values("migDevices: on-demand"), "7g.80gb"},
		"flag before":     {"get --preset hgx-h100-8 --mig-devices none -o jsonpath={.totals.free}{.totals.largestFreePartition.profile}." + values("migDevices: on-demand"), "8."},
		"later file":      {"get --preset hgx-h100-8 -o jsonpath={.totals.largestFreePartition.profile}" + values("migDevices: none") + values("migDevices: on-demand"), "7g.80gb"},
		"layout":          {"get --preset hgx-h100-8 --mig-layout-file " + file + " -o jsonpath={.items[0].partitions[*].profile}" + values("migDevices: static\nmigLayouts: {configMap: x, default: small}"), "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb"},
		"layout by label": {"get --preset hgx-h100-8 --mig-layout-file " + file + " --mig-layout whole -o jsonpath={.totals.free}" + values("migDevices: static\nmigLayouts: {configMap: x, default: small}"), "8"},
		"layout by flags": {"get --preset hgx-h100-8 --mig-devices static --mig-layout-file " + file + " --mig-layout small -o jsonpath={.items[7].partitions[6].profile}", "1g.10gb"},
		"shares":          {"plan --search 10m --preset t4-4 --copies 9 -o jsonpath={.items[7].verdict},{.items[8].verdict} -f " + save(t, "c.yaml", claimOf("shared.gpu.nvidia.com")) + values("sharing: {devices: [{enforcement: none, replicas: 2}]}"), "fits,does not fit"},
		"old cluster":     {"get --preset hgx-h100-8 --kubernetes-version v1.36.2 -o jsonpath={.items[0].partitions[*].name}" + values("migDevices: on-demand\nsharing: {devices: [{enforcement: none, devices: {profiles: ['*']}}]}"), ""},
		"lists":           {"slice-template --preset dgx1-v100 --list-attributes", "nvlinkCliques:"},
	} {
		t.Run(name, func(t *testing.T) {
			out := prints(t, tc.args, tc.want)
			if tc.want == "" && strings.TrimSpace(out) != "" {
				t.Errorf("%s prints %q", tc.args, out)
			}
		})
	}
}

func claimOf(class string) string {
	return "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: g, exactly: {deviceClassName: " + class + "}}]}}\n"
}

// What cannot be is refused with the flag or the value, what it is, what is allowed and what to do.
func TestWrongValues(t *testing.T) {
	values := func(text string) string {
		return "slice-template --preset hgx-h100-8 --values " + save(t, "values.yaml", text)
	}
	file := save(t, "layouts.yaml", layouts)
	for name, tc := range map[string]struct {
		args  string
		words []string
	}{
		"no file":            {"slice-template --preset t4-4 --values /nowhere", []string{"--values", "/nowhere"}},
		"no values":          {values("[1]"), []string{"--values", "no file of values"}},
		"wrong type":         {values("migDevices: 3"), []string{"--values: migDevices is a number, must be a string"}},
		"wrong choice":       {values("migDevices: many"), []string{`--mig-devices: "many" is not allowed: use one of none, static, on-demand`}},
		"wrong vocabulary":   {values("sliceVocabulary: tiny"), []string{`--slice-vocabulary: "tiny" is not allowed: use one of full, minimal`}},
		"wrong name":         {values("driverName: GPU"), []string{`--driver-name: "GPU" is not allowed: use a DNS name`}},
		"wrong selection":    {values("gpus: {exclude: [{uuids: [x]}]}"), []string{"--exclude-gpus", `uuids: "x" is not allowed`, "nvidia-smi -L"}},
		"wrong inclusion":    {values("gpus: {include: [{}]}"), []string{"--include-gpus", "it says nothing"}},
		"wrong shares":       {values("sharing: {devices: [{enforcement: some}]}"), []string{"--shared-devices", `enforcement: "some" is not allowed`, "mps, driver, cooperative, none"}},
		"shares without MPS": {values("sharing: {devices: [{enforcement: mps, replicas: 2}]}"), []string{"--mps: false is not allowed", "declared as shared by MPS"}},
		"wrong plugin file":  {values("sharing: {devicePluginConfig: 'version: v7'}"), []string{"--device-plugin-config", "v7"}},
		"layout, no file":    {values("migDevices: static\nmigLayouts: {configMap: layouts, default: small}"), []string{`migLayouts.configMap is "layouts"`, "--mig-layout-file"}},
		"layout alone":       {"slice-template --preset hgx-h100-8 --mig-devices static --mig-layout small", []string{`--mig-layout: "small" is not allowed: give --mig-layout-file, too`}},
		"layout, none":       {"slice-template --preset hgx-h100-8 --mig-layout small --mig-layout-file " + file, []string{`--mig-devices: "none" is not allowed: with --mig-layout-file use static or on-demand`}},
		"unknown layout":     {"slice-template --preset hgx-h100-8 --mig-devices static --mig-layout big --mig-layout-file " + file, []string{`no MIG layout "big": the file has small, whole`}},
		"no layout file":     {"slice-template --preset hgx-h100-8 --mig-devices static --mig-layout-file /nowhere", []string{"--mig-layout-file", "/nowhere"}},
		"wrong layout file":  {"slice-template --preset hgx-h100-8 --mig-devices static --mig-layout-file " + save(t, "l.yaml", "version: v9"), []string{"--mig-layout-file", `version "v9" is not known, want "v1"`}},
		"old release":        {"slice-template --preset t4-4 --kubernetes-version 1.33", []string{`--kubernetes-version "1.33": use 1.34 or a later release`}},
		"no release":         {"slice-template --preset t4-4 --kubernetes-version new", []string{`--kubernetes-version "new": use 1.34 or a later release`}},
		"empty driver":       {"slice-template --preset t4-4 --driver-name=", []string{"--driver-name is empty"}},
		"no node name":       {"slice-template --preset t4-4 --node-name=", []string{`--node-name "" is not allowed: use the name of a node`}},
		"wrong node name":    {"slice-template --preset t4-4 --node-name Node_1", []string{`--node-name "Node_1" is not allowed`}},
		"unknown preset":     {"slice-template --preset dgx", []string{`--preset "dgx" is none of a100-pcie-8`}},
		"in a cluster":       {"get --preset hgx-h100-8 --mig-devices static --mig-layout big --mig-layout-file " + file, []string{`no MIG layout "big"`}},
		"without a preset":   {"get --values x", []string{"--values, --mig-devices", "add --preset"}},
		"version alone":      {"doctor --kubernetes-version 1.34", []string{"--kubernetes-version say what nodes of --preset offer"}},
		"nodes alone":        {"gather x --nodes 3", []string{"--nodes belongs to --preset"}},
		"many nodes":         {"get --preset t4-4 --nodes 1001", []string{"--nodes 1001: use 1 to 1000"}},
		"many copies":        {"plan --search 10m --preset t4-4 --copies 1001 -f x", []string{"--copies 1001: use 1 to 1000"}},
		"negative weights":   {"advise --weights-gb -1", []string{"--weights-gb -1: use more than 0"}},
		"no tenants":         {"advise --weights-gb 1 --tenants 0", []string{"--tenants 0: use 1 to 1000000"}},
		"a word for weights": {"advise --weights-gb many", []string{"weights-gb", "many"}},
		"a word for time":    {"explain pod x --search long --preset t4-4", []string{"search", "long"}},
		"unknown flag":       {"get --what", []string{"unknown flag: --what"}},
		"unknown command":    {"got", []string{`unknown command "got"`}},
		"arguments of get":   {"get gpus --preset t4-4", []string{"gpus"}},
		"jsonpath":           {"get --preset t4-4 -o jsonpath={", []string{"-o jsonpath={: error parsing jsonpath", "unclosed"}},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, tc.args, tc.words...) })
	}
}
