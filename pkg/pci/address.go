// Package pci holds the one name of a GPU that survives reboots, driver reloads and
// re-enumeration: its PCI address. Everything in the driver that must be stable (device
// names, locks, records, counter sets) is keyed by it. The package knows nothing of NVML,
// sysfs or Kubernetes.
package pci

import (
	"cmp"
	"fmt"
)

// Address is a PCI function: domain, bus, device and function numbers.
type Address struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// Parse reads an address in the form that sysfs uses ("0000:1a:00.0") or in NVML's
// ("00000000:1A:00.0"): hexadecimal digits of either case, a domain of four to eight digits.
func Parse(text string) (Address, error) {
	var a Address
	bad := func() (Address, error) {
		return Address{}, fmt.Errorf("PCI address %q is not of the form dddd:bb:dd.f", text)
	}
	fields, ok := split(text)
	if !ok {
		return bad()
	}
	values := [4]uint64{}
	for i, f := range fields {
		v, ok := parseHex(f)
		if !ok {
			return bad()
		}
		values[i] = v
	}
	if values[2] > 0x1f || values[3] > 7 {
		return bad()
	}
	a.Domain, a.Bus, a.Device, a.Function = uint32(values[0]), uint8(values[1]), uint8(values[2]), uint8(values[3])
	return a, nil
}

// split cuts text into domain, bus, device and function digits and checks their lengths.
func split(text string) ([4]string, bool) {
	n := len(text)
	// The tail ":bb:dd.f" has a fixed length of eight bytes.
	const tail = len(":bb:dd.f")
	if n < tail+4 || n > tail+8 {
		return [4]string{}, false
	}
	t := text[n-tail:]
	if t[0] != ':' || t[3] != ':' || t[6] != '.' {
		return [4]string{}, false
	}
	return [4]string{text[:n-tail], t[1:3], t[4:6], t[7:]}, true
}

func parseHex(digits string) (uint64, bool) {
	var v uint64
	for i := range len(digits) {
		c := digits[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | uint64(c)
	}
	return v, len(digits) > 0
}

// String gives the form of sysfs and of the standard attribute
// resource.kubernetes.io/pciBusID: "0000:1a:00.0".
func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Label gives the address as part of a DNS label: "0000-1a-00-0".
func (a Address) Label() string {
	return fmt.Sprintf("%04x-%02x-%02x-%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses as the bus does: by domain, bus, device and function.
func (a Address) Compare(b Address) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// MarshalText and UnmarshalText make the address usable as a JSON string and map key.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText is the inverse of MarshalText; it takes every form that Parse takes.
func (a *Address) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}
