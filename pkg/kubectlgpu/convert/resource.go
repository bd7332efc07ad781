package convert

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	vendor = "nvidia.com/"
	// gpuClass is the class of whole GPUs, sharedClass that of shares.
	gpuClass    = "gpu.nvidia.com"
	sharedClass = "shared.gpu.nvidia.com"
)

// migResource matches resources of the mixed strategy: nvidia.com/mig-1g.10gb, …-1g.10gb.me,
// …-1c.2g.10gb.
var migResource = regexp.MustCompile(`^nvidia\.com/mig-((?:\d+c\.)?\d+g\.\d+gb)((?:\.[a-z0-9]+)*)$`)

// known tells that a resource is one of the device plugin's.
func known(name corev1.ResourceName) bool {
	return name == vendor+"gpu" || name == vendor+"gpu.shared" || migResource.MatchString(string(name))
}

// classOf names the class that stands for a resource, and makes the class of a MIG profile.
func (c *converter) classOf(name corev1.ResourceName) string {
	switch name {
	case vendor + "gpu":
		return gpuClass
	case vendor + "gpu.shared":
		return sharedClass
	}
	parts := migResource.FindStringSubmatch(string(name))
	// The device plugin writes a dot for the plus of "1g.10gb+me".
	return c.migClass(parts[1] + strings.ReplaceAll(parts[2], ".", "+"))
}

// migClass makes a class for a MIG profile, so that quota and manifests can name it.
func (c *converter) migClass(profile string) string {
	name := "mig-" + strings.NewReplacer(".", "-", "+", "-").Replace(profile)
	if c.classes[name] {
		return name
	}
	c.classes[name] = true
	c.add(&resourceapi.DeviceClass{
		TypeMeta: typed("DeviceClass"), ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{selector(fmt.Sprintf(
			`device.driver == %[1]q && device.attributes[%[1]q].?type.orValue("") == "mig" && device.attributes[%[1]q].?profile.orValue("") == %[2]q`, c.Driver, profile))}},
	}, "A class for each MIG profile, so that quota and claims can name it.")
	return name
}

// expressions of node labels.
func (c *converter) attribute(name string) string {
	return fmt.Sprintf("device.attributes[%q].%s", c.Driver, name)
}

// product selects the values of the label nvidia.com/gpu.product: the product with dashes for
// spaces, behind it -SHARED for shared GPUs and -MIG-<profile> under the single strategy.
func (c *converter) product(values ...string) string {
	var all []string
	for _, v := range values {
		v = strings.TrimSuffix(v, "-SHARED")
		if i := strings.Index(v, "-MIG-"); i > 0 {
			v = v[:i]
		}
		all = append(all, fmt.Sprintf("%q", v))
	}
	name := c.attribute("productName")
	return fmt.Sprintf(`has(%s) && %s.replace(" ", "-") in [%s]`, name, name, strings.Join(all, ", "))
}

// memory compares the label nvidia.com/gpu.memory, in MiB.
func (c *converter) memory(operator string, mebi int64) string {
	return fmt.Sprintf(`device.capacity[%q].?memory.orValue(quantity("0")).compareTo(quantity("%dMi")) %s 0`, c.Driver, mebi, operator)
}
