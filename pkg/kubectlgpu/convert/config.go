package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	api "github.com/gpu-dra/driver/api/resource/v1beta1"
	"github.com/gpu-dra/driver/pkg/mig/layout"
)

// pluginConfig is what the device plugin's configuration says of sharing.
type pluginConfig struct {
	Version string `json:"version"`
	Flags   struct {
		MIGStrategy string `json:"migStrategy"`
	} `json:"flags"`
	Sharing struct {
		TimeSlicing sharedResources `json:"timeSlicing"`
		MPS         sharedResources `json:"mps"`
	} `json:"sharing"`
	// MIG is mig-parted's.
	MIG map[string][]struct {
		Devices any `json:"mig-devices"`
	} `json:"mig-configs"`
}

type sharedResources struct {
	RenameByDefault            bool             `json:"renameByDefault"`
	FailRequestsGreaterThanOne bool             `json:"failRequestsGreaterThanOne"`
	Resources                  []sharedResource `json:"resources"`
}

type sharedResource struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
}

// configMap converts the entries of a ConfigMap that are configurations of the device plugin or of
// mig-parted. The ConfigMap itself is kept: nodes that still run the device plugin need it.
func (c *converter) configMap(m *corev1.ConfigMap) error {
	found := false
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		base := m.Name + "-" + key
		if len(m.Data) == 1 {
			base = m.Name
		}
		found = c.settings(fmt.Sprintf("ConfigMap %s, %s", m.Name, key), base, m.Data[key]) || found
	}
	note := ""
	if found {
		note = "Kept for nodes that still run the device plugin or the MIG manager; delete it with the last of them."
	}
	return c.keep(m, note)
}

// settings converts one configuration; false for text that is none.
func (c *converter) settings(where, base, text string) bool {
	var config pluginConfig
	if err := yaml.Unmarshal([]byte(text), &config); err != nil || config.Version != "v1" {
		return false
	}
	sharing := config.Sharing
	switch {
	case config.MIG != nil:
		c.layouts(where, text, config)
	case len(sharing.TimeSlicing.Resources)+len(sharing.MPS.Resources) > 0:
		c.shared(where, base, api.TimeSlicing, sharing.TimeSlicing)
		c.shared(where, base, api.MPS, sharing.MPS)
	case config.Flags.MIGStrategy != "":
		c.add(nil, fmt.Sprintf("%s: migStrategy %s has no equal and needs none: partitions are devices of the class mig.nvidia.com, whole GPUs of gpu.nvidia.com.", where, config.Flags.MIGStrategy))
	default:
		return false
	}
	return true
}

// shared makes a class with the sharing of one kind for each resource.
func (c *converter) shared(where, base string, strategy api.SharingStrategy, from sharedResources) {
	for _, r := range from.Resources {
		name := corev1.ResourceName(r.Name)
		if !strings.Contains(r.Name, "/") {
			name = corev1.ResourceName(vendor + r.Name)
		}
		if !known(name) || name == vendor+"gpu.shared" || r.Replicas < 1 {
			c.add(nil, fmt.Sprintf("No equal: %s shares %q in %d.", where, r.Name, r.Replicas))
			continue
		}
		of, mig := c.classOf(name), name != vendor+"gpu"
		class := &resourceapi.DeviceClass{TypeMeta: typed("DeviceClass"), ObjectMeta: metav1.ObjectMeta{Name: c.unique(base, of, strategy)}}
		class.Spec.Selectors = c.like(of, mig)
		parameters, err := json.Marshal(parameters(strategy, mig, r.Replicas))
		if err != nil {
			c.add(nil, fmt.Sprintf("No equal: %s: %v", where, err))
			continue
		}
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: c.Driver, Parameters: runtime.RawExtension{Raw: parameters},
		}}}}
		comments := []string{
			fmt.Sprintf("%s: %s shared in %d by %s.", where, name, r.Replicas, strategy),
			fmt.Sprintf("Up to %d pods that name one ResourceClaim of this class share its device as they did.", r.Replicas),
			"For a claim of its own for each pod, give this file to the chart (sharing.devicePluginConfig) and ask for class " + sharedClass + ".",
		}
		if from.FailRequestsGreaterThanOne {
			comments = append(comments, "failRequestsGreaterThanOne: not needed, a claim for one device is one device; for the extended resource the chart has sharing.failRequestsGreaterThanOne.")
		}
		c.add(class, comments...)
	}
}

// unique names a class after its ConfigMap, what it is like and how it shares.
func (c *converter) unique(base, of string, strategy api.SharingStrategy) string {
	name := strings.ToLower(fmt.Sprintf("%s-%s", strings.TrimSuffix(of, ".nvidia.com"), strategy))
	base = strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(base)), "-")
	const most = 180
	if base != "" {
		name = strings.Trim(base[:min(most, len(base))], "-") + "-" + name
	}
	candidate := name
	for i := 2; c.classes[candidate]; i++ {
		candidate = fmt.Sprintf("%s-%d", name, i)
	}
	c.classes[candidate] = true
	return candidate
}

// like are the selectors of the class that shares what another class has.
func (c *converter) like(of string, mig bool) []resourceapi.DeviceSelector {
	if !mig {
		return []resourceapi.DeviceSelector{selector(fmt.Sprintf(`device.driver == %[1]q && device.attributes[%[1]q].?type.orValue("") == "gpu"`, c.Driver))}
	}
	for _, d := range c.out {
		if class, ok := d.Object.(*resourceapi.DeviceClass); ok && class.Name == of {
			return class.Spec.Selectors
		}
	}
	return nil
}

// parameters are the driver's own configuration. MPS divides the threads as the replicas did.
func parameters(strategy api.SharingStrategy, mig bool, replicas int) api.Config {
	var mps *api.MPSConfig
	if strategy == api.MPS {
		mps = &api.MPSConfig{DefaultActiveThreadPercentage: ptr.To(max(1, 100/replicas))}
	}
	if mig {
		return &api.MigDeviceConfig{
			TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindMigDeviceConfig}, Sharing: &api.MigDeviceSharing{Strategy: strategy, MPSConfig: mps},
		}
	}
	out := &api.GpuConfig{TypeMeta: api.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindGpuConfig}, Sharing: &api.GpuSharing{Strategy: strategy, MPSConfig: mps}}
	if strategy == api.TimeSlicing {
		out.Sharing.TimeSlicingConfig = &api.TimeSlicingConfig{Interval: ptr.To(api.DefaultTimeSlice)}
	}
	return out
}

// layouts makes a class for each profile of mig-parted's configurations. The layouts themselves are
// the driver's setting in the same format, or not needed at all where partitions are made on demand.
func (c *converter) layouts(where, text string, config pluginConfig) {
	if _, err := layout.Parse([]byte(text)); err != nil {
		c.add(nil, fmt.Sprintf("No equal: %s: %v", where, err))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(config.MIG)) {
		for _, entry := range config.MIG[name] {
			profiles, _ := entry.Devices.(map[string]any)
			for _, profile := range slices.Sorted(maps.Keys(profiles)) {
				if migResource.MatchString(vendor + "mig-" + strings.ReplaceAll(profile, "+", ".")) {
					c.migClass(profile)
				}
			}
		}
	}
	c.add(nil, fmt.Sprintf("%s: layouts %s.", where, strings.Join(slices.Sorted(maps.Keys(config.MIG)), ", ")),
		"With the chart's migDevices: on-demand a claim makes the partition that it asks for, and no layout is needed.",
		"A node that must keep a fixed layout is given this file as it is: the driver reads its format.")
}

// quota turns counts of the plugin's resources into counts of devices of a class.
func (c *converter) quota(q *corev1.ResourceQuota) error {
	var comments []string
	hard := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		amount := q.Spec.Hard[name]
		of, isRequest := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
		switch {
		case isRequest && known(corev1.ResourceName(of)):
			counted := corev1.ResourceName(c.classOf(corev1.ResourceName(of)) + corev1.ResourceClaimsPerClass)
			comments = append(comments, fmt.Sprintf("%s counts pods, %s counts devices of claims.", name, counted))
			sum := hard[counted]
			sum.Add(amount)
			hard[counted] = sum
		case strings.Contains(string(name), vendor):
			comments = append(comments, fmt.Sprintf("No equal: %s. It was left as it is.", name))
			hard[name] = amount
		default:
			hard[name] = amount
		}
	}
	q.Spec.Hard = hard
	return c.keep(q, comments...)
}
