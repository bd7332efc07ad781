// Package admission judges what users and admins write for this driver before it is stored: the
// opaque configurations of claims, claim templates and device classes, by the rules that the
// plugin itself prepares claims by. It is for the webhook, which serves it, and for tools that
// check manifests. It must not know a Kubernetes client, or what the nodes have.
package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
)

// maxMistakes bounds what one answer lists: the API server cuts long messages.
const maxMistakes = 10

// Reviewer judges objects for the driver of a name.
type Reviewer struct {
	// Driver is the driver's name; what is written for others is passed over.
	Driver string
}

// config is one opaque configuration and where it stands. All served versions of the API have
// the same fields here.
type config struct {
	Requests []string                               `json:"requests"`
	Opaque   *resourceapi.OpaqueDeviceConfiguration `json:"opaque"`
}

// request is what a claim asks for.
type request struct {
	Name           string            `json:"name"`
	FirstAvailable []json.RawMessage `json:"firstAvailable"`
}

// spec is what matters of a claim's spec.
type spec struct {
	Devices devices `json:"devices"`
}

type devices struct {
	Requests []request `json:"requests"`
	Config   []config  `json:"config"`
}

// Review answers a request of the API server. Requests about other resources, and deletions, are
// allowed: nothing of ours is in them.
func (r Reviewer) Review(asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{UID: asked.UID, Allowed: true}
	if asked.Operation == admissionv1.Delete || asked.SubResource != "" {
		return response
	}
	mistakes, err := r.Check(asked.Resource.Resource, asked.Object.Raw)
	switch {
	case err != nil:
		return refuse(response, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case len(mistakes) > 0:
		return refuse(response, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, text(mistakes))
	}
	return response
}

func refuse(r *admissionv1.AdmissionResponse, code int32, reason metav1.StatusReason, message string) *admissionv1.AdmissionResponse {
	r.Allowed = false
	r.Result = &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
	return r
}

// Check finds the mistakes in an object, given as JSON, of a resource of the group
// resource.k8s.io by its plural name. Other resources have none. The error says that the object
// is none of that resource.
func (r Reviewer) Check(resource string, object []byte) ([]error, error) {
	var at *field.Path
	var found devices
	var err error
	switch resource {
	case "resourceclaims":
		var claim struct {
			Spec spec `json:"spec"`
		}
		err = json.Unmarshal(object, &claim)
		at, found = field.NewPath("spec", "devices", "config"), claim.Spec.Devices
	case "resourceclaimtemplates":
		var template struct {
			Spec struct {
				Spec spec `json:"spec"`
			} `json:"spec"`
		}
		err = json.Unmarshal(object, &template)
		at, found = field.NewPath("spec", "spec", "devices", "config"), template.Spec.Spec.Devices
	case "deviceclasses":
		var class struct {
			Spec struct {
				Config []config `json:"config"`
			} `json:"spec"`
		}
		err = json.Unmarshal(object, &class)
		at, found.Config = field.NewPath("spec", "config"), class.Spec.Config
	}
	if err != nil {
		return nil, fmt.Errorf("the object of resource %q cannot be read: %w", resource, err)
	}
	return r.mistakes(at, found), nil
}

// mistakes judges the configurations for our driver, each by itself and then together.
func (r Reviewer) mistakes(at *field.Path, found devices) []error {
	var out []error
	loaded := make([]configapi.Config, len(found.Config))
	for i, c := range found.Config {
		if c.Opaque == nil || c.Opaque.Driver != r.Driver {
			continue
		}
		value, err := configapi.Load(c.Opaque.Parameters.Raw)
		if err != nil {
			out = append(out, fmt.Errorf("%s: %w", at.Index(i).Child("opaque", "parameters"), err))
			continue
		}
		loaded[i] = value
	}
	return append(out, mixed(at, found, loaded)...)
}

// mixed finds configurations of different kinds for the same request by name. A device is of one
// kind, so that one of them would make every claim fail, on whatever node it lands. The
// alternatives of a prioritized list may be of different kinds.
func mixed(at *field.Path, found devices, loaded []configapi.Config) []error {
	var out []error
	first := map[string]int{}
	for i, c := range found.Config {
		if loaded[i] == nil {
			continue
		}
		for _, name := range c.Requests {
			before, named := first[name]
			if !named {
				first[name] = i
				continue
			}
			had, has := loaded[before].ConfigKind(), loaded[i].ConfigKind()
			if had != has && !found.prioritized(name) {
				out = append(out, fmt.Errorf("%s: request %q has a %s here and a %s in %s: a device is of one kind, leave one of them out",
					at.Index(i).Child("requests"), name, has, had, at.Index(before)))
			}
		}
	}
	return out
}

// prioritized tells whether the request has alternatives.
func (d devices) prioritized(name string) bool {
	return slices.ContainsFunc(d.Requests, func(r request) bool { return r.Name == name && len(r.FirstAvailable) > 0 })
}

func text(mistakes []error) string {
	if n := len(mistakes) - maxMistakes; n > 0 {
		mistakes = append(slices.Clone(mistakes[:maxMistakes]), fmt.Errorf("and %d more", n))
	}
	return errors.Join(mistakes...).Error()
}
