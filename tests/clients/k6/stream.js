// The bidirectional stream: three requests are written, three final responses have to come back.
import { Client, Stream } from 'k6/net/grpc';
import { Counter } from 'k6/metrics';
import encoding from 'k6/encoding';

const client = new Client();
const finals = new Counter('final_responses');
const failures = new Counter('failures');

export const options = {
  vus: 2,
  iterations: 20,
  thresholds: { final_responses: ['count==60'], failures: ['count==0'] },
};

let connected = false;

export default () => {
  if (!connected) {
    client.connect(__ENV.ADDRESS, { plaintext: true, reflect: true });
    connected = true;
  }
  failures.add(0);
  const stream = new Stream(client, 'inference.GRPCInferenceService/ModelStreamInfer');
  stream.on('data', (message) => {
    if (message.errorMessage) {
      failures.add(1);
    } else if (message.inferResponse.parameters.triton_final_response.boolParam) {
      finals.add(1);
    }
  });
  stream.on('error', (error) => {
    console.error(JSON.stringify(error));
    failures.add(1);
  });
  for (const text of ['one', 'two', 'three']) {
    stream.write({
      modelName: 'tiny-embed',
      inputs: [
        { name: 'TEXT', datatype: 'BYTES', shape: [1, 1], contents: { bytesContents: [encoding.b64encode(text)] } },
      ],
    });
  }
  stream.end();
};
