package simstate

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode"
)

// constant is one name of the layout that C needs as well.
type constant struct {
	name  string
	value uint64
}

func constants() []constant {
	return []constant{
		{"SIM_MAGIC", Magic},
		{"SIM_LAYOUT_VERSION", LayoutVersion},
		{"SIM_NO_INSTANCE", NoInstance},
		{"SIM_MAX_GPUS", MaxGPUs},
		{"SIM_MAX_LINKS", MaxLinks},
		{"SIM_MAX_PROFILES", MaxProfiles},
		{"SIM_MAX_PLACEMENTS", MaxPlacements},
		{"SIM_MAX_GPU_INSTANCES", MaxGPUInstances},
		{"SIM_MAX_COMPUTE_INSTANCES", MaxComputeInstances},
		{"SIM_MAX_FAULTS", MaxFaults},
		{"SIM_MAX_EVENTS", MaxEvents},
		{"SIM_MAX_PROCESSES", MaxProcesses},
		{"SIM_MAX_MEMORY_LIMITS", MaxMemoryLimits},
		{"SIM_CPU_WORDS", CPUWords},
		{"SIM_NODE_WORDS", NodeWords},
		{"SIM_REMOTE_GPU", RemoteGPU},
		{"SIM_REMOTE_SWITCH", RemoteSwitch},
		{"SIM_REMOTE_UNKNOWN", RemoteUnknown},
	}
}

// FeatureNames maps the name of a feature in node files to its bit.
func FeatureNames() map[string]uint64 {
	return map[string]uint64{
		"memory":            FeatureMemory,
		"serial":            FeatureSerial,
		"moduleID":          FeatureModuleID,
		"boardPartNumber":   FeatureBoardPartNumber,
		"ecc":               FeatureECC,
		"persistence":       FeaturePersistence,
		"computeMode":       FeatureComputeMode,
		"addressingMode":    FeatureAddressingMode,
		"numa":              FeatureNUMA,
		"cpuAffinity":       FeatureCPUAffinity,
		"virtualization":    FeatureVirtualization,
		"topology":          FeatureTopology,
		"architecture":      FeatureArchitecture,
		"brand":             FeatureBrand,
		"computeCapability": FeatureComputeCapability,
		"uuid":              FeatureUUID,
		"name":              FeatureName,
		"minor":             FeatureMinor,
		"temperature":       FeatureTemperature,
		"events":            FeatureEvents,
		"recoveryAction":    FeatureRecoveryAction,
		"fabric":            FeatureFabric,
		"timeSlice":         FeatureTimeSlice,
		"migComputeMode":    FeatureMIGComputeMode,
		"memoryLimits":      FeatureMemoryLimits,
	}
}

// Header returns the C header of the layout: structs, constants and an assertion
// for every size and offset, so that a C compiler proves both views equal.
func Header() string {
	var b strings.Builder
	b.WriteString("/* Generated from the Go package simstate; do not edit. */\n")
	b.WriteString("#ifndef SIM_LAYOUT_H\n#define SIM_LAYOUT_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n")
	for _, c := range constants() {
		fmt.Fprintf(&b, "#define %s %#x%s\n", c.name, c.value, suffix(c.value))
	}
	for _, name := range sortedKeys(FeatureNames()) {
		fmt.Fprintf(&b, "#define SIM_FEATURE_%s 0x%xull\n", strings.ToUpper(snake(name)), FeatureNames()[name])
	}
	b.WriteString("\n")
	done := map[reflect.Type]bool{}
	writeStruct(&b, reflect.TypeFor[Node](), done)
	b.WriteString("#endif\n")
	return b.String()
}

// writeStruct writes the structs that t needs, then t.
func writeStruct(b *strings.Builder, t reflect.Type, done map[reflect.Type]bool) {
	if done[t] {
		return
	}
	done[t] = true
	for f := range t.NumField() {
		if e := element(t.Field(f).Type); e.Kind() == reflect.Struct {
			writeStruct(b, e, done)
		}
	}
	name := structName(t)
	fmt.Fprintf(b, "struct %s {\n", name)
	for f := range t.NumField() {
		field := t.Field(f)
		dims := ""
		if field.Type.Kind() == reflect.Array {
			dims = fmt.Sprintf("[%d]", field.Type.Len())
		}
		fmt.Fprintf(b, "\t%s %s%s;\n", cType(field.Type), snake(field.Name), dims)
	}
	b.WriteString("};\n")
	fmt.Fprintf(b, "_Static_assert(sizeof(struct %s) == %d, \"size of %s\");\n", name, t.Size(), name)
	for f := range t.NumField() {
		field := t.Field(f)
		fmt.Fprintf(b, "_Static_assert(offsetof(struct %s, %s) == %d, \"offset of %s.%s\");\n",
			name, snake(field.Name), field.Offset, name, snake(field.Name))
	}
	b.WriteString("\n")
}

// suffix keeps small constants int-sized in C, so that loops over tables need no casts.
func suffix(value uint64) string {
	if value <= math.MaxUint32 {
		return "u"
	}
	return "ull"
}

func element(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Array {
		return t.Elem()
	}
	return t
}

func structName(t reflect.Type) string { return "sim_" + snake(t.Name()) }

func cType(t reflect.Type) string {
	e := element(t)
	switch e.Kind() {
	case reflect.Struct:
		return "struct " + structName(e)
	case reflect.Uint8:
		return "char"
	default:
		return e.Kind().String() + "_t"
	}
}

// snake turns a Go name into a C name: GPUInstanceID becomes gpu_instance_id.
func snake(name string) string {
	runes := []rune(strings.ReplaceAll(strings.ReplaceAll(name, "MBps", "Mbps"), "GPUs", "Gpus"))
	var b strings.Builder
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		if upper && i > 0 {
			afterLower := !unicode.IsUpper(runes[i-1])
			beforeLower := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if afterLower || beforeLower {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
