// Holds a ServiceMonitor, a JSON object on standard input, against the schema of Prometheus' operator.
// Prints {"errors": what is wrong, "" for nothing}.
import { readFileSync } from "node:fs";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

let errors = "";
try {
  new ServiceMonitor(JSON.parse(readFileSync(0, "utf8"))).validate();
} catch (error) {
  errors = String(error.message);
}
console.log(JSON.stringify({ errors }));
