// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

func (e *environment) newHistoryCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "See what happened to a maintenance, and when",
		Long: `See what happened to a maintenance and when: the stages from its status, and the events about the
maintenance and its nodes. The status keeps the stages; clusters delete events after an hour, unless they are
configured otherwise. Below the past, NOW has the present conditions. The formats json and yaml have only the past.

The object names the user who requested the last stage; the events name those of the stages before. WHAT is a stage,
or the reason of an event, as "kubectl get events" shows it.`,
		Example: `  kubectl maintenance history kernel-update`,
		Args:    exactArgs("history needs the name of a maintenance", 1), ValidArgsFunction: e.completeMaintenances,
		SuggestFor: []string{"events", "log", "logs", "who", "audit"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(historyFormats, format) && format != "" {
				return fmt.Errorf("invalid --output %q: it must be json or yaml", format)
			}
			return e.history(cmd.Context(), format, maintenanceName(args[0]))
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "Output format. One of: (json, yaml).")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(historyFormats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

var historyFormats = []string{"json", "yaml"}

func (e *environment) history(ctx context.Context, format, name string) error {
	c, err := e.connect()
	if err != nil {
		return err
	}
	nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	events, err := eventsAbout(ctx, c, nm)
	if apierrors.IsForbidden(err) {
		e.screen(e.ErrOut).Printf("Note: you may not list events in namespace default, so only the records of the status are shown.")
	} else if err != nil {
		return err
	}
	moments := show.History(nm, events)
	if format == "" {
		o := fitting(e.screen(e.Out))
		e.show(append(show.HistoryTable(moments, o), show.Present(nm, o)...))
		return nil
	}
	content, err := json.MarshalIndent(moments, "", "    ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		if content, err = yaml.JSONToYAML(content); err != nil {
			return err
		}
		return e.screen(e.Out).Write(content)
	}
	return e.screen(e.Out).Write(append(content, '\n'))
}

// eventsAbout returns the events about a maintenance, and the events about nodes that name the
// maintenance. Events about objects without a namespace are in namespace default.
func eventsAbout(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance) ([]eventsv1.Event, error) {
	var out []eventsv1.Event
	for kind, fits := range map[string]func(*eventsv1.Event) bool{
		"NodeMaintenance": func(event *eventsv1.Event) bool { return event.Regarding.UID == nm.UID },
		"Node":            func(event *eventsv1.Event) bool { return event.Related != nil && event.Related.UID == nm.UID },
	} {
		options := metav1.ListOptions{Limit: 500, FieldSelector: fields.OneTermEqualSelector("regarding.kind", kind).String()}
		for {
			page, err := c.kube.EventsV1().Events(metav1.NamespaceDefault).List(ctx, options)
			if err != nil {
				return nil, err
			}
			for i := range page.Items {
				if event := &page.Items[i]; event.Regarding.Kind == kind && fits(event) {
					out = append(out, *event)
				}
			}
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
	}
	return out, nil
}
