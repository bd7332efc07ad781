package inventory

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Bounds of what is said of a change, since a GPU that comes and goes is told at every scan.
const (
	// maxDetail is a Change.Detail's length in bytes, maxValue that of one value in it.
	maxDetail, maxValue = 200, 60
	// maxNames is how many elements of a list are named.
	maxNames = 3
)

// differences lists the fields of two values of one GPU that differ, in the order of the type.
func differences(before, after GPU) string {
	before.Index, after.Index = 0, 0
	return strings.Join(fields("", reflect.ValueOf(before), reflect.ValueOf(after)), ", ")
}

// fields compares two structs of one type, and those in them, field by field.
func fields(prefix string, before, after reflect.Value) []string {
	var texts []string
	for i := range before.NumField() {
		x, y := before.Field(i), after.Field(i)
		if reflect.DeepEqual(x.Interface(), y.Interface()) {
			continue
		}
		name := prefix + before.Type().Field(i).Name
		_, atom := x.Interface().(fmt.Stringer)
		switch {
		case x.Kind() == reflect.Slice:
			texts = append(texts, name+": "+elements(labels(x.Interface()), labels(y.Interface())))
		case x.Kind() == reflect.Struct && !atom:
			texts = append(texts, fields(name+".", x, y)...)
		default:
			texts = append(texts, fmt.Sprintf("%s: %s -> %s", name, show(x), show(y)))
		}
	}
	return texts
}

// elements says how many a list had and has, and names some that are in one of the two only.
func elements(before, after []string) string {
	var names []string
	for _, label := range before {
		if !slices.Contains(after, label) {
			names = append(names, "-"+label)
		}
	}
	for _, label := range after {
		if !slices.Contains(before, label) {
			names = append(names, "+"+label)
		}
	}
	switch more := len(names) - maxNames; {
	case len(names) == 0:
		names = []string{"in their values"}
	case more > 0:
		names = append(names[:maxNames], fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%d -> %d (%s)", len(before), len(after), strings.Join(names, " "))
}

// labels names the elements of a GPU's lists. Links that are down have no part in it.
func labels(list any) []string {
	var names []string
	switch list := list.(type) {
	case []pci.Address:
		for _, peer := range list {
			names = append(names, peer.String())
		}
	case []Link:
		for i, link := range list {
			if link.Active {
				names = append(names, fmt.Sprint(i))
			}
		}
	case []MIGProfile:
		for _, profile := range list {
			names = append(names, profile.Name)
		}
	case []MIGInstance:
		for _, instance := range list {
			names = append(names, instance.Placement.String())
		}
	}
	return names
}

func show(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "none"
		}
		v = v.Elem()
	}
	return cut(fmt.Sprintf("%+v", v.Interface()), maxValue)
}

// cut shortens a text to at most so many bytes.
func cut(text string, limit int) string {
	const more = "…"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(more)], "") + more
}
