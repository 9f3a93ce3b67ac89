// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// Margin is the part of the maximum delay that no pod may use: the agent needs it to store its
	// state and to release the shutdown.
	Margin = 5 * time.Second
	// MaxTableEntries is the maximum number of entries of the table. The drain plan has one entry
	// per pod type for each of them.
	MaxTableEntries = v1alpha1.MaxOwnDrainPlanEntries / 3
	// MaxDelay is the highest maximum delay.
	MaxDelay = 24 * time.Hour

	maxGracePeriod = int64(MaxDelay / time.Second)
)

// Validate returns the errors of a configuration that has its defaults.
func Validate(c *configv1alpha1.NodeAgentConfiguration) field.ErrorList {
	return validate(c, runtime.GOOS)
}

func validate(c *configv1alpha1.NodeAgentConfiguration, goos string) field.ErrorList {
	var errs field.ErrorList
	if c.NodeName != "" {
		for _, msg := range validation.IsDNS1123Subdomain(c.NodeName) {
			errs = append(errs, field.Invalid(field.NewPath("nodeName"), c.NodeName, msg))
		}
	}
	errs = append(errs, validateTable(c.ShutdownGracePeriodByPodPriority, field.NewPath("shutdownGracePeriodByPodPriority"))...)
	errs = append(errs, validateTimes(c)...)
	errs = append(errs, validatePlaces(c, goos)...)
	errs = append(errs, validateChoices(c, goos)...)
	errs = append(errs, oneOf(field.NewPath("staticPods"), c.StaticPods, configv1alpha1.StaticPodsEvacuate, configv1alpha1.StaticPodsKeep)...)
	errs = append(errs, validatePatterns(c.KeepStaticPods, field.NewPath("keepStaticPods"))...)
	errs = append(errs, validatePatterns(c.EvacuateStaticPods, field.NewPath("evacuateStaticPods"))...)
	return append(errs, validateBindAddress(c.MetricsBindAddress, field.NewPath("metricsBindAddress"))...)
}

// validateTable accepts each table that the kubelet accepts and that has only one meaning. Any
// order is valid, since the kubelet sorts its table, and KEP-2712 has examples in descending order.
// Two entries with one priority are invalid: the result in the kubelet depends on its sorting. An
// entry without any time is invalid: its pods would be killed immediately.
func validateTable(table []configv1alpha1.ShutdownGracePeriodByPodPriority, fldPath *field.Path) field.ErrorList {
	if len(table) == 0 {
		return field.ErrorList{field.Required(fldPath, "must have at least one entry")}
	}
	if len(table) > MaxTableEntries {
		return field.ErrorList{field.TooMany(fldPath, len(table), MaxTableEntries)}
	}
	var errs field.ErrorList
	seen := map[int32]bool{}
	for i, entry := range table {
		if seen[entry.Priority] {
			errs = append(errs, field.Duplicate(fldPath.Index(i).Child("priority"), entry.Priority))
		}
		seen[entry.Priority] = true
		if entry.ShutdownGracePeriodSeconds < 1 || entry.ShutdownGracePeriodSeconds > maxGracePeriod {
			errs = append(errs, field.Invalid(fldPath.Index(i).Child("shutdownGracePeriodSeconds"), entry.ShutdownGracePeriodSeconds,
				validation.InclusiveRangeError(1, int(maxGracePeriod))))
		}
	}
	return errs
}

func validateTimes(c *configv1alpha1.NodeAgentConfiguration) field.ErrorList {
	delay, grace, restore := field.NewPath("maxShutdownDelay"), field.NewPath("apiGracePeriod"), field.NewPath("apiLossRestorePeriod")
	errs := inRange(delay, c.MaxShutdownDelay, time.Second, MaxDelay)
	if len(errs) == 0 {
		if least := total(c.ShutdownGracePeriodByPodPriority) + Margin; c.MaxShutdownDelay.Duration < least {
			errs = append(errs, field.Invalid(delay, c.MaxShutdownDelay.Duration.String(),
				fmt.Sprintf("must be at least %v: all periods of shutdownGracePeriodByPodPriority and %v", least, Margin)))
		}
	}
	errs = append(errs, inRange(grace, c.APIGracePeriod, time.Second, 10*time.Minute)...)
	errs = append(errs, inRange(restore, c.APILossRestorePeriod, 10*time.Second, 24*time.Hour)...)
	return append(errs, inRange(field.NewPath("hauloutLossRestorePeriod"), c.HauloutLossRestorePeriod, 10*time.Second, 24*time.Hour)...)
}

// total returns the sum of the periods of a table; it does not overflow.
func total(table []configv1alpha1.ShutdownGracePeriodByPodPriority) time.Duration {
	var sum time.Duration
	for _, entry := range table {
		seconds := min(max(entry.ShutdownGracePeriodSeconds, 0), maxGracePeriod)
		if add := time.Duration(seconds) * time.Second; sum <= math.MaxInt64-add {
			sum += add
		}
	}
	return sum
}

func inRange(fldPath *field.Path, d metav1.Duration, low, high time.Duration) field.ErrorList {
	if d.Duration >= low && d.Duration <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(fldPath, d.Duration.String(), fmt.Sprintf("must be between %v and %v, inclusive", low, high))}
}

func validatePlaces(c *configv1alpha1.NodeAgentConfiguration, goos string) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name, value string
		optional    bool
	}{
		{name: "kubeconfig", value: c.Kubeconfig},
		{name: "kubeletConfig", value: c.KubeletConfig},
		{name: "stateDirectory", value: c.StateDirectory},
		{name: "staticPodPath", value: c.StaticPodPath, optional: true},
	} {
		if f.value == "" && f.optional || isAbs(f.value, goos) {
			continue
		}
		errs = append(errs, field.Invalid(field.NewPath(f.name), f.value, "must be an absolute path"))
	}
	if isRoot(c.StaticPodPath, goos) {
		errs = append(errs, field.Invalid(field.NewPath("staticPodPath"), c.StaticPodPath,
			"must not be the root of a file system: the agent parks manifests beside the directory"))
	}
	prefix := "unix:///"
	if goos == "windows" {
		prefix = "npipe:////./pipe/"
	}
	if c.RuntimeEndpoint != "" && !strings.HasPrefix(c.RuntimeEndpoint, prefix) || len(c.RuntimeEndpoint) == len(prefix) {
		errs = append(errs, field.Invalid(field.NewPath("runtimeEndpoint"), c.RuntimeEndpoint, "must begin with "+prefix+" and have a path"))
	}
	return errs
}

var windowsAbs = regexp.MustCompile(`^([A-Za-z]:[\\/]|\\\\[^\\/]+[\\/][^\\/]+)`)

// isAbs does not use filepath, so that tests can check the paths of another operating system.
func isAbs(p, goos string) bool {
	if goos == "windows" {
		return windowsAbs.MatchString(p)
	}
	return path.IsAbs(p)
}

func isRoot(p, goos string) bool {
	if goos == "windows" {
		return isAbs(p, goos) && strings.Trim(p[2:], `\/.`) == ""
	}
	return path.IsAbs(p) && path.Clean(p) == "/"
}

var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.service$`)

func validateChoices(c *configv1alpha1.NodeAgentConfiguration, goos string) field.ErrorList {
	errs := validateEngine(c.LocalEngine, field.NewPath("localEngine"))
	errs = append(errs, oneOf(field.NewPath("onForgottenShutdown"), c.OnForgottenShutdown,
		configv1alpha1.ForgottenShutdownKeep, configv1alpha1.ForgottenShutdownCancel)...)
	if c.DrainBeforeShutdown != nil && !*c.DrainBeforeShutdown && c.LocalEngine == configv1alpha1.LocalEngineNone {
		errs = append(errs, field.Invalid(field.NewPath("drainBeforeShutdown"), false,
			"must be true if localEngine is None: otherwise nothing ends the pods"))
	}
	service := field.NewPath("kubeletService")
	switch {
	case goos == "windows" && (c.KubeletService == "" || strings.ContainsAny(c.KubeletService, `/\`) || len(c.KubeletService) > 256):
		errs = append(errs, field.Invalid(service, c.KubeletService, `must be the name of a service: at most 256 characters, no / or \`))
	case goos != "windows" && !unitName.MatchString(c.KubeletService):
		errs = append(errs, field.Invalid(service, c.KubeletService, "must be the name of a systemd unit that ends with .service"))
	}
	return errs
}

// validateEngine returns a hint for the engine of older versions, instead of replacing it with CRI.
// A node that used KubeletBus still has the kubelet's own graceful shutdown enabled, which ends all
// pods when a shutdown begins, without regard to their budgets.
func validateEngine(engine configv1alpha1.LocalEngine, fldPath *field.Path) field.ErrorList {
	if engine == "KubeletBus" {
		return field.ErrorList{field.Invalid(fldPath, engine, `was removed: must be "CRI" or "None"; first remove `+
			"shutdownGracePeriodByPodPriority, shutdownGracePeriod and shutdownGracePeriodCriticalPods from the kubelet's configuration")}
	}
	return oneOf(fldPath, engine, configv1alpha1.LocalEngineCRI, configv1alpha1.LocalEngineNone)
}

// maxPatterns is the maximum number of patterns of static pods in a list.
const maxPatterns = 64

func validatePatterns(patterns []string, fldPath *field.Path) field.ErrorList {
	if len(patterns) > maxPatterns {
		return field.ErrorList{field.TooMany(fldPath, len(patterns), maxPatterns)}
	}
	var errs field.ErrorList
	for i, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || strings.Count(pattern, "/") != 1 {
			errs = append(errs, field.Invalid(fldPath.Index(i), pattern, "must be <namespace>/<name>, in which * stands for any characters but /"))
		}
	}
	return errs
}

func oneOf[T ~string](fldPath *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(fldPath, value, allowed)}
}

func validateBindAddress(address *string, fldPath *field.Path) field.ErrorList {
	if address == nil || *address == "" {
		return nil
	}
	if parsed, err := netip.ParseAddrPort(*address); err != nil || parsed.Port() == 0 {
		return field.ErrorList{field.Invalid(fldPath, *address, `must be an IP address and a port, such as 127.0.0.1:10271 or [::1]:10271, or ""`)}
	}
	return nil
}
