package admission_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/pkg/admission"
)

const driver = "gpu.nvidia.com"

// Parameters of configurations.
const (
	header   = `"apiVersion":"resource.nvidia.com/v1beta1","kind":`
	slicing  = `{` + header + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`
	tiny     = `{` + header + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Tiny"}}}`
	mistyped = `{` + header + `"GpuConfig","sharing":{"strategi":"TimeSlicing"}}`
	migMPS   = `{` + header + `"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
	foreign  = `{"whatever":1}`
)

// entry writes one configuration for some requests.
func entry(driver, parameters string, requests ...string) string {
	names, _ := json.Marshal(requests)
	if requests == nil {
		names = []byte("[]")
	}
	return fmt.Sprintf(`{"requests":%s,"opaque":{"driver":%q,"parameters":%s}}`, names, driver, parameters)
}

func ours(parameters string, requests ...string) string {
	return entry(driver, parameters, requests...)
}

// devices is the part that claims and templates have in common.
func devices(configs ...string) string {
	return `{"devices":{"requests":[{"name":"gpu"},{"name":"either","firstAvailable":[{"name":"a"},{"name":"b"}]}],"config":[` + strings.Join(configs, ",") + `]}}`
}

func claim(configs ...string) string { return `{"spec":` + devices(configs...) + `}` }

var reviewer = admission.Reviewer{Driver: driver}

func TestCheck(t *testing.T) {
	const at = "spec.devices.config"
	for name, c := range map[string]struct {
		resource, object string
		// says has what each mistake says, in order.
		says [][]string
	}{
		"no configuration":            {"resourceclaims", `{"spec":{"devices":{"requests":[{"name":"gpu"}]}}}`, nil},
		"a valid one":                 {"resourceclaims", claim(ours(slicing)), nil},
		"another driver's":            {"resourceclaims", claim(entry("nic.example.com", foreign)), nil},
		"no opaque part":              {"resourceclaims", claim(`{"requests":["gpu"]}`), nil},
		"an invalid value":            {"resourceclaims", claim(ours(tiny)), [][]string{{at + "[0].opaque.parameters", `"Tiny"`, `"Long"`}}},
		"a field that is not there":   {"resourceclaims", claim(ours(slicing), ours(mistyped)), [][]string{{at + "[1]", "strategi"}}},
		"no parameters":               {"resourceclaims", claim(`{"opaque":{"driver":"` + driver + `"}}`), [][]string{{at + "[0]", "apiVersion"}}},
		"several":                     {"resourceclaims", claim(ours(tiny), entry("other", foreign), ours(foreign)), [][]string{{"[0]"}, {"[2]"}}},
		"a template's":                {"resourceclaimtemplates", `{"spec":` + claim(ours(tiny)) + `}`, [][]string{{"spec.spec.devices.config[0].opaque.parameters"}}},
		"a class's":                   {"deviceclasses", `{"spec":{"config":[` + ours(tiny) + `]}}`, [][]string{{"spec.config[0].opaque.parameters"}}},
		"a class's two kinds":         {"deviceclasses", `{"spec":{"config":[` + ours(slicing) + "," + ours(migMPS) + `]}}`, nil},
		"two kinds for all":           {"resourceclaims", claim(ours(slicing), ours(migMPS)), nil},
		"two kinds for two requests":  {"resourceclaims", claim(ours(slicing, "gpu"), ours(migMPS, "other")), nil},
		"two kinds for a request":     {"resourceclaims", claim(ours(slicing, "gpu"), ours(migMPS, "x", "gpu")), [][]string{{at + "[1].requests", `"gpu"`, "MigDeviceConfig", "GpuConfig", at + "[0]"}}},
		"two kinds for alternatives":  {"resourceclaims", claim(ours(slicing, "either"), ours(migMPS, "either")), nil},
		"two kinds, one alternative":  {"resourceclaims", claim(ours(slicing, "either/a"), ours(migMPS, "either/a")), [][]string{{`"either/a"`}}},
		"one kind twice":              {"resourceclaims", claim(ours(slicing, "gpu"), ours(slicing, "gpu")), nil},
		"an invalid one of two kinds": {"resourceclaims", claim(ours(tiny, "gpu"), ours(migMPS, "gpu")), [][]string{{"Tiny"}}},
		"another resource":            {"pods", `{"spec":{"devices":{"config":[` + ours(tiny) + `]}}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			mistakes, err := reviewer.Check(c.resource, []byte(c.object))
			if err != nil {
				t.Fatal(err)
			}
			if len(mistakes) != len(c.says) {
				t.Fatalf("%d mistakes, want %d: %v", len(mistakes), len(c.says), mistakes)
			}
			for i, words := range c.says {
				for _, word := range words {
					if !strings.Contains(mistakes[i].Error(), word) {
						t.Errorf("%q does not say %q", mistakes[i], word)
					}
				}
			}
		})
	}
}

func TestCheckRefusesWhatIsNoObject(t *testing.T) {
	for _, object := range []string{"", "[]", `{"spec":{"devices":{"config":{}}}}`} {
		if _, err := reviewer.Check("resourceclaims", []byte(object)); err == nil || !strings.Contains(err.Error(), "resourceclaims") {
			t.Errorf("%q: %v", object, err)
		}
	}
}

// Another name of the driver has other configurations.
func TestCheckByDriverName(t *testing.T) {
	named := admission.Reviewer{Driver: "gpu.example.com"}
	mistakes, err := named.Check("resourceclaims", []byte(claim(ours(tiny), entry("gpu.example.com", tiny))))
	if err != nil || len(mistakes) != 1 || !strings.Contains(mistakes[0].Error(), "config[1]") {
		t.Error(mistakes, err)
	}
}

func request(operation admissionv1.Operation, object string) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{
		UID: "the-uid", Operation: operation, Resource: metav1.GroupVersionResource{Resource: "resourceclaims"}, Object: runtime.RawExtension{Raw: []byte(object)},
	}
}

func TestReview(t *testing.T) {
	status := request(admissionv1.Update, claim(ours(tiny)))
	status.SubResource = "status"
	for name, c := range map[string]struct {
		request *admissionv1.AdmissionRequest
		code    int32
	}{
		"valid":   {request(admissionv1.Create, claim(ours(slicing))), 0},
		"invalid": {request(admissionv1.Create, claim(ours(tiny))), http.StatusUnprocessableEntity},
		"update":  {request(admissionv1.Update, claim(ours(tiny))), http.StatusUnprocessableEntity},
		"broken":  {request(admissionv1.Create, "["), http.StatusBadRequest},
		"deleted": {request(admissionv1.Delete, ""), 0},
		"status":  {status, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := reviewer.Review(c.request)
			if got.UID != "the-uid" || got.Allowed != (c.code == 0) {
				t.Fatalf("%+v", got)
			}
			if c.code != 0 && (got.Result.Code != c.code || got.Result.Message == "" || got.Result.Status != metav1.StatusFailure) {
				t.Errorf("%+v", got.Result)
			}
		})
	}
}

// However many mistakes there are, the answer stays readable, and says how many it leaves out.
func TestLongAnswers(t *testing.T) {
	var many []string
	for range 32 {
		many = append(many, ours(tiny))
	}
	message := reviewer.Review(request(admissionv1.Create, claim(many...))).Result.Message
	if lines := strings.Split(message, "\n"); len(lines) != 11 || lines[10] != "and 22 more" {
		t.Errorf("%s", message)
	}
}

// Whatever is sent, the reviewer answers, and the same each time.
func FuzzCheck(f *testing.F) {
	for _, object := range []string{claim(), claim(ours(tiny, "gpu"), ours(migMPS, "gpu")), claim(ours(foreign)), `{"spec":{"config":[]}}`, "["} {
		f.Add("resourceclaims", []byte(object))
		f.Add("deviceclasses", []byte(object))
		f.Add("resourceclaimtemplates", []byte(`{"spec":`+object+`}`))
	}
	f.Fuzz(func(t *testing.T, resource string, object []byte) {
		first, err := reviewer.Check(resource, object)
		second, again := reviewer.Check(resource, object)
		if (err == nil) != (again == nil) || cmp.Diff(fmt.Sprint(first), fmt.Sprint(second)) != "" {
			t.Errorf("%v, %v and then %v, %v", first, err, second, again)
		}
		for _, mistake := range first {
			if !strings.HasPrefix(mistake.Error(), "spec.") {
				t.Errorf("%q does not say where", mistake)
			}
		}
	})
}
