package chart

import (
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
)

// compile makes of a policy what the API server makes of it.
func compile(t *testing.T, policy *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	none := cel.OptionalVariableDeclarations{}
	for _, v := range policy.Spec.Variables {
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, none, environment.NewExpressions)
		if result.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, result.Error)
		}
	}
	var conditions, messages, matches []cel.ExpressionAccessor
	for i, v := range policy.Spec.Validations {
		conditions = append(conditions, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		var message cel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
		if v.Message == "" && v.MessageExpression == "" {
			t.Errorf("validation %d says nothing", i)
		}
	}
	for i := range policy.Spec.MatchConditions {
		matches = append(matches, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	filter := func(expressions []cel.ExpressionAccessor) cel.ConditionEvaluator {
		evaluator := compiler.CompileCondition(expressions, none, environment.NewExpressions)
		for _, err := range evaluator.CompilationErrors() {
			t.Fatal(err)
		}
		return evaluator
	}
	matcher := matchconditions.NewMatcher(filter(matches), policy.Spec.FailurePolicy, "policy", "validate", policy.Name)
	return validating.NewValidator(filter(conditions), matcher, filter(nil), filter(messages), policy.Spec.FailurePolicy, nil)
}

// request is one write of a ResourceSlice.
type request struct {
	operation admission.Operation
	user      user.Info
	slice     *resourcev1.ResourceSlice
	old       *resourcev1.ResourceSlice
}

// denied gives the message with which a policy refuses a request, "" where it does not.
func denied(t *testing.T, v validating.Validator, r request) string {
	t.Helper()
	gvk := resourcev1.SchemeGroupVersion.WithKind("ResourceSlice")
	gvr := resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	object := func(s *resourcev1.ResourceSlice) runtime.Object {
		if s == nil {
			return nil
		}
		return s
	}
	attributes := admission.NewAttributesRecord(object(r.slice), object(r.old), gvk, "", "slice", gvr, "", r.operation, nil, false, r.user)
	versioned, err := admission.NewVersionedAttributes(attributes, gvk, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	if err != nil {
		t.Fatal(err)
	}
	result := v.Validate(t.Context(), gvr, versioned, nil, nil, celconfig.RuntimeCELCostBudget, nil)
	for _, decision := range result.Decisions {
		if decision.Evaluation == validating.EvalError {
			t.Fatalf("evaluating: %s", decision.Message)
		}
		if decision.Action == validating.ActionDeny {
			return decision.Message
		}
	}
	return ""
}

func plugin(account, node string) user.Info {
	info := &user.DefaultInfo{Name: "system:serviceaccount:" + account}
	if node != "" {
		info.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return info
}

func sliceOf(driver, node, pool string) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}}
	slice.Name = "slice"
	slice.Spec = resourcev1.ResourceSliceSpec{Driver: driver, Pool: resourcev1.ResourcePool{Name: pool, ResourceSliceCount: 1}}
	if node != "" {
		slice.Spec.NodeName = &node
	}
	return slice
}

func TestPolicyKeepsPluginsToTheirNode(t *testing.T) {
	const account = "gpu-dra-driver:gpu-dra-driver-kubelet-plugin"
	const driver = "gpu.nvidia.com"
	own, others := sliceOf(driver, "node-a", "node-a"), sliceOf(driver, "node-b", "node-b")
	everywhere := sliceOf(driver, "", "node-a")
	everywhere.Spec.AllNodes = new(true)
	me := plugin(account, "node-a")
	tests := map[string]struct {
		request
		// want is part of the message; empty where the request is let through.
		want string
	}{
		"create own":                     {request{admission.Create, me, own, nil}, ""},
		"update own":                     {request{admission.Update, me, own, own}, ""},
		"delete own":                     {request{admission.Delete, me, nil, own}, ""},
		"create another's":               {request{admission.Create, me, others, nil}, "'node-a' may only write ResourceSlices with this spec.nodeName, not 'node-b'"},
		"update another's":               {request{admission.Update, me, others, others}, "'node-b'"},
		"delete another's":               {request{admission.Delete, me, nil, others}, "'node-b'"},
		"turn another's into own":        {request{admission.Update, me, own, others}, "spec.nodeName"},
		"turn own into another's":        {request{admission.Update, me, others, own}, "spec.nodeName"},
		"create for all nodes":           {request{admission.Create, me, everywhere, nil}, "not ''"},
		"delete one for all nodes":       {request{admission.Delete, me, nil, everywhere}, "not ''"},
		"another's pool":                 {request{admission.Create, me, sliceOf(driver, "node-a", "node-b"), nil}, "pool of the same name"},
		"another driver's slice":         {request{admission.Create, me, sliceOf("nic.example.com", "node-a", "node-a"), nil}, "of driver gpu.nvidia.com"},
		"delete another driver's slice":  {request{admission.Delete, me, nil, sliceOf("nic.example.com", "node-a", "node-a")}, "of driver gpu.nvidia.com"},
		"a token without a node":         {request{admission.Create, plugin(account, ""), own, nil}, "not bound to a pod"},
		"the kubelet":                    {request{admission.Delete, &user.DefaultInfo{Name: "system:node:node-b"}, nil, own}, ""},
		"an administrator":               {request{admission.Delete, &user.DefaultInfo{Name: "admin"}, nil, others}, ""},
		"the same account elsewhere":     {request{admission.Create, plugin("other:gpu-dra-driver-kubelet-plugin", "node-a"), others, nil}, ""},
		"another account of the release": {request{admission.Create, plugin("gpu-dra-driver:default", "node-a"), others, nil}, ""},
	}
	policy := compile(t, named(t, every[*admissionv1.ValidatingAdmissionPolicy](decode(t, render(t, valuesFrom(""), reference).Manifest)), "-own-slices"))
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			message := denied(t, policy, tt.request)
			if (message == "") != (tt.want == "") || !strings.Contains(message, tt.want) {
				t.Errorf("refused with %q, want %q", message, tt.want)
			}
		})
	}
}

// named gives the one object whose name ends so.
func named[T metav1.Object](t *testing.T, objects []T, suffix string) T {
	t.Helper()
	for _, o := range objects {
		if strings.HasSuffix(o.GetName(), suffix) {
			return o
		}
	}
	t.Fatalf("no object is named …%s", suffix)
	panic("unreachable")
}

func TestPolicyFollowsNames(t *testing.T) {
	objects := decode(t, render(t, valuesFrom(filepath.Join(chartDir, "ci", "full-values.yaml")), reference).Manifest)
	policy := named(t, every[*admissionv1.ValidatingAdmissionPolicy](objects), "-own-slices")
	v := compile(t, policy)
	me := plugin("gpu-system:gpu-plugin", "node-a")
	if message := denied(t, v, request{admission.Create, me, sliceOf("gpu.example.com", "node-a", "node-a"), nil}); message != "" {
		t.Errorf("its own slice is refused: %s", message)
	}
	if denied(t, v, request{admission.Create, me, sliceOf("gpu.nvidia.com", "node-a", "node-a"), nil}) == "" {
		t.Error("a slice of another driver is let through")
	}
	binding := named(t, every[*admissionv1.ValidatingAdmissionPolicyBinding](objects), "-own-slices")
	if binding.Spec.PolicyName != policy.Name || len(binding.Spec.ValidationActions) != 1 || binding.Spec.ValidationActions[0] != admissionv1.Deny {
		t.Errorf("the binding does not enforce the policy: %+v", binding.Spec)
	}
}

func TestPolicyCoversEveryVersion(t *testing.T) {
	policy := named(t, every[*admissionv1.ValidatingAdmissionPolicy](decode(t, render(t, valuesFrom(""), reference).Manifest)), "-own-slices")
	rule := policy.Spec.MatchConstraints.ResourceRules[0]
	covered := map[string]bool{}
	for _, version := range rule.APIVersions {
		covered[version] = true
	}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if gvk.Group == "resource.k8s.io" && gvk.Kind == "ResourceSlice" && !covered[gvk.Version] {
			t.Errorf("ResourceSlices of version %s pass by the policy", gvk.Version)
		}
	}
	if *policy.Spec.FailurePolicy != admissionv1.Fail || *policy.Spec.MatchConstraints.MatchPolicy != admissionv1.Equivalent {
		t.Errorf("failure policy %s, match policy %s", *policy.Spec.FailurePolicy, *policy.Spec.MatchConstraints.MatchPolicy)
	}
	if len(rule.Operations) != 3 {
		t.Errorf("operations %v, want CREATE, UPDATE and DELETE", rule.Operations)
	}
}
